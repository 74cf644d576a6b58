"""A member of a real cluster that lies, the honest nodes around it, and the invariant that must survive it.

``lies`` makes messages with one thing wrong, ``member`` has the identity and the connections, ``bait`` is a
user whose calls reach the member, and ``plays`` decides what is said in which order and when.
``honest_nodes`` has the three nodes that are lied to, with their users. ``campaign`` runs plays by seed and
checks the invariant after each. ``turncoat`` is another sort of member: a real node whose messages are bent.
"""

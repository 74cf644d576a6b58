"""Connections and shared memory: the ways in which tasks, nodes and clients exchange bytes.

- ``unix``: the socket between a task or user process and its node, with descriptors
- ``rings``: streams between two tasks through a ring in shared memory (thesis §4.7.4)
- ``memory``: anonymous shared memory, its seals, and the node's pool of it
- ``identity``: certificates, join tokens, and the nodes that a node trusts
- ``tcp``: TLS connections between nodes, bulk transfers, and announcements on a local network
- ``batch``: the small frames that one turn of the event loop sends, joined for each peer

``dios.wire`` has the messages. Nothing here interprets them.
"""

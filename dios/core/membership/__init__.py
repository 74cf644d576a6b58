"""Which nodes of the cluster live: SWIM with Lifeguard's cautions, pure and in ticks.

- ``swim``: the protocol, one method for each thing that happens.
- ``member_table``: the table of nodes, and which of two statements about a node counts.
- ``probes``: which node is asked next, and the open probes.
- ``dissemination``: news, and how often each is still sent.
"""

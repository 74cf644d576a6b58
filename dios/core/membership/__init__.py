"""The membership of the cluster: its nodes and their status, by SWIM with Lifeguard; pure, in ticks.

- ``swim``: the protocol, with a method for each event.
- ``member_table``: the table of nodes, and the rules that merge two statements about a node.
- ``live_view``: the living nodes in the order and with the digest that all nodes compute alike.
- ``probes``: the order of the probed nodes, and the open probes.
- ``dissemination``: the news to send, and the number of sends left for each.
- ``partners``: the few nodes that are probed in a large cluster.
- ``table_digest``: digests of a table, to find the rows in which two tables differ.
- ``clocks``: the offset of another node's clock, estimated from the pings.
"""

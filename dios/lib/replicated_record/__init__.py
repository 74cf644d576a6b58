"""A record in several replicas with one history: majorities, compare-and-set, replaceable replicas.

The replicas are durable objects of one name on different nodes, and acceptors of a protocol in the manner of
CASPaxos (Rystsov, 2018): any client proposes, and nobody leads. ``docs/adr/0115-one-history.md`` has the
protocol with its proof. Read in this order:

- ``frame``: the bytes of a replica: the value that it has accepted, and its promise
- ``quorums``: sets of replicas that suffice to read, and to decide
- ``steps``: the operations on replicas that the protocol asks for
- ``protocol``: reading and changing the record, without any input or output of its own
- ``blocking`` and ``asynchronous``: the steps as calls of a node
"""

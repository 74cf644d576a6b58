"""Files with kept replicas in virtual time: the real library and keepers, on a model of nodes and disks.

Read the modules in this order:

- ``history``: the writes to single objects, which of them were acknowledged, and which replicas have them
- ``file_history``: the changes of files, and the contents that a read may find
- ``nodes``: a model of nodes with disks, cuts between them, and their views of each other
- ``calls``: the answers of a node to the messages of one session, with delays, failures and killed programs
- ``links``: the connections of both clients to the model; a program is a thread that runs in its turn
- ``surroundings``: virtual time, random bytes and limits for the library, and a store of tiered files
- ``safety``: the disks that have acknowledged files, and the destruction of their last copies
- ``users``: programs that put, replace, move, remove, tier and read files, and write to objects
- ``troubles``: the faults of nodes, disks and the network
- ``claims``: the claims of ``docs/testing.md#the-simulator``, checked at the end
- ``world``: one run
"""

"""Kept replicas in virtual time: the real keepers, on a model of the nodes that they act on.

Read the modules in this order:

- ``history``: the writes that users made, which of them were acknowledged, and which replicas have them.
- ``nodes``: a model of nodes with disks, cuts between them, and their views of each other.
- ``session``: the calls that a keeper makes on a node, with delays and failures.
- ``users``: programs that put files, write to objects and change promises.
- ``world``: one run: faults, rest, and the claims of ``docs/simulator.md``.
"""

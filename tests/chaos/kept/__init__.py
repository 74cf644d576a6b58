"""Kept replicas on real nodes: programs change a group's files while nodes, networks, clocks and disks fail.

``make chaos KEPT=1`` plays rounds: a plan of faults (``plan``, carried out by ``faults``) on a cluster whose
machines can be cut off, and have clocks and disks that lie (``cluster``, ``machine`` with ``shim.c``,
``power``); programs that write down what they were answered (``client``, ``content``, ``notes``); a look at
the healed cluster (``group``), and the verdict (``verdict``). ``round`` is one round, ``campaign`` many.
"""

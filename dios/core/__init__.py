"""The core of a node: a pure state machine that receives an event and returns an outcome.

The outcome lists the effects that the host has to carry out. Nothing here blocks, reads a clock or accesses
the machine. Read in this order:

- ``events`` and ``effects``: the input and the output of the core.
- ``machine``: ``Core.step``, which handles one event; ``step``: the outcome while it is being collected.
- ``model``: the tables and records of a node, and their invariants.
- ``containment``: the end of a task or connection whose work ended in an exception.
- ``lifetimes``: the creation and the end of references, buffers and objects.
- ``work``: long work, in parts that each fit into a step.
- ``calls``: the system calls, one module for each family.
- ``remote``: requests to other nodes, and their requests to this node.
- ``membership``: the nodes of the cluster and their status (SWIM).
- ``snapshot``: the whole state as bytes, to continue from; ``recording``: the format of a
  recorded node, and ``replay``: its events in a new core.
"""

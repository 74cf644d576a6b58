"""The core of a node: a pure state machine that receives an event and returns what the host has to do.

Nothing here blocks, reads a clock or touches the machine. Read in this order:

- ``events`` and ``effects``: what comes in and what goes out.
- ``machine``: ``Core.step``, which takes one event; ``step`` collects the outcome meanwhile.
- ``model``: the tables and records of a node, and what is always true of them.
- ``lifetimes``: how references, buffers and objects come and go.
- ``calls``: the system calls, one module for each family.
- ``remote``: requests to other nodes, and their requests to this node.
- ``membership``: which nodes live (SWIM).
- ``snapshot``: the whole state as bytes, to continue from; ``recording``: the format of a recorded node.
"""

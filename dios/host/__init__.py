"""The host: the part of a node that does the I/O which the core asks for (§4.10.2).

The core decides and returns effects; the host carries them out. Read in this order:

- ``loop``: the path of an event: core step, durable changes, effects.
- ``content``: the bytes of objects, buffers, rings, consoles and public pages.
- ``process``: task processes and the connections of tasks and users' programs.
- ``confinement``: everything that confines a pure task; ``environments``: packages and images that only some
  see; ``containers``: the tasks in images.
- ``peers``: connections with other nodes.
- ``network``: TCP and UDP sockets of network streams, and shaping of a network interface.
- ``bandwidth``: meters, rates and guarantees of bytes.
- ``machine``: the structure and the power of this machine, from procfs and sysfs.
- ``audit``: the audit log, and the refusal of calls that cannot be recorded.
- ``handover``: the state of all this for the program that replaces the node's.
"""

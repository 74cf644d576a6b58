"""``dios-node doctor``: tries what a node needs on this machine, and reports what to change.

- ``diagnosis``: the sandbox, the machine, and the guarantees that follow; start here.
- ``finding``: the result of one test.
- ``promises``: the rows of docs/threat-model.md.
- ``store``: tests that a directory can hold a node's store.
- ``processor``: tests that the daemon has its turn while tasks compute.
- ``scrubbing``: tests that stored objects match their digests.
- ``environments``: tests that users can choose packages for their tasks.
- ``images``: tests that sandboxes can have images.
- ``capacity``: shows what the node's disk and link carry.
- ``cluster``: tests identity, addresses, port and clock of a node in a cluster.
- ``replicas``: tests that promised replicas are there.
- ``releases``: compares the releases of the running node, the installed program and the other nodes.
"""

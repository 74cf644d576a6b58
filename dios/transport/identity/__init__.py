"""The identity of nodes: who belongs to a cluster, and how a machine joins it (``docs/joining.md``).

Read in this order:

- ``certificates``: the three roles of certificates, and the rules for their chains
- ``identity``: a node's identity, as stored in its data directory
- ``trust``: known and revoked nodes
- ``tokens``, ``joining``: a line of text that admits a machine, and the conversation in which it is used
- ``durable_files``: small files that are written completely or not at all
"""

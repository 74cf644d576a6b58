"""The identity of nodes: the members of a cluster, and the admission of machines (``docs/clusters.md``).

Read in this order:

- ``certificates``: the kinds of certificates, the roles of nodes, and the rules for chains
- ``identity``: a node's identity, as stored in its data directory
- ``statements``: members' signed lists of removed nodes, and of those that stay
- ``trust``: the known nodes, and the statements that count
- ``generations``: the secrets of the cluster that follow the first one, each after a removal
- ``trusted_clusters``: the foreign clusters that a node trusts at its border
- ``principals``: the register of users with keys, as a node has stored it
- ``tokens``, ``joining``: a line of text that admits a machine, and the conversation in which it is used
- ``renewal``: the conversation in which a node gets its next certificate
- ``durable_files``: small files that are written completely or not at all
"""

"""Tiered files: cold files whose bytes are in a store outside of the cluster, and come back when read.

Read in this order:

- ``marks``: the names of a file's packs, which follow from a random mark
- ``store``: the store of one group: its key, and storing, reading and removing the bytes of a file
- ``entries``: changes of catalogue entries, and the end of changes that broke off
- ``outward``: moves files into a store; ``inward``: brings them back
- ``removal``: removes bytes from the store that no file has any more

``docs/backup.md`` is the guide for users. The catalogue says where the bytes of each file are. Only clients
load these modules: a daemon reads catalogues, and no store.
"""

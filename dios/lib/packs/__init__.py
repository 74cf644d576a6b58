"""Packs: encrypted chunks of files in a store that may read, lose or change everything it is given.

Backups and tiered files are kept in such stores. Read in this order:

- ``failures``: the errors
- ``keys``: the files of a recipient's key pair, and the wrapped key of a store
- ``sealing``: encryption and digests; every stored byte is bound to its place
- ``targets``: the stores: a local directory, or any file system of fsspec
- ``compression``: the compression of a chunk before it is encrypted
- ``chunks``: chunks, many of them in one stored file, the pack
- ``configuration``: the plain file of a store, with its wrapped key
- ``writer_state``: the local file of a machine that uses a store
- ``tier_store``: the store of the tiered files of one group

``docs/backup.md`` describes the stored bytes. Only ``targets`` uses fsspec, and only for targets that are no
local directory.
"""

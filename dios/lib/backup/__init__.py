"""Backups of a user's groups in a store that may read, lose or change everything it is given.

Read in this order:

- ``failures``: the errors
- ``keys``: the files of a recipient's key pair, and the wrapped key of a backup
- ``sealing``: encryption and digests; every stored byte is bound to its place
- ``records``: the stored records
- ``targets``: the stores: a local directory, or any file system of fsspec
- ``writer_state``: the local file of a machine that makes backups
- ``repository``: the backup in a target: its key, its snapshots, and signs of a rollback
- ``compression``: the compression of a chunk before it is encrypted
- ``packs``: chunks, many of them in one stored file
- ``create``, ``restore``, ``verify``, ``prune``: the actions

``docs/backup.md`` is the guide for users, and ``docs/backup.md`` the page of the stored bytes. Only
``targets`` uses fsspec, and only for targets that are no local directory.
"""

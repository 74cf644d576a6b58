"""Backups of a user's groups: encrypted snapshots in a store, made by a client (``dios.lib.packs``).

Read in this order:

- ``records``: the stored records
- ``repository``: the backup in a target: its key, its snapshots, and signs of a rollback
- ``create``, ``restore``, ``verify``, ``prune``: the actions

``docs/backup.md`` is the guide for users, and describes the stored bytes.
"""

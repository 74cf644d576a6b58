"""Tiered files: cold files whose bytes are in a store outside of the cluster, and come back when read.

Read in this order:

- ``entries``: changes of catalogue entries, the end of changes that broke off, and the removal of bytes that
  no file has any more
- ``outward``: moves files into a store; ``inward``: brings them back

``dios.lib.packs.tier_store`` is the store, and ``docs/backup.md`` the guide for users. The catalogue says
where the bytes of each file are. Only clients load these modules: a daemon reads catalogues, and no store.
"""

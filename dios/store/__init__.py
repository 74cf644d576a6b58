"""The durable store of a node: a record and a content for each object (thesis §3.6).

Read in this order:

- ``protocol``: the interface and the guarantees of every store
- ``schema``: the stored form of one object, a row with a check value
- ``lmdb_store``: the durable store; ``environment`` opens its database and translates its errors
- ``row_index``: the index by which a start reads few rows, and a lookup one
- ``extents``, ``log_files``: large contents and logs, one file each
- ``recovery``: the start of a store after a crash
- ``directory``, ``locking``: one process at a time uses a data directory
- ``scrubbing``, ``scrub_report``: compare the contents of a store in service with their digests
- ``check``, ``findings``, ``repair``: examine and repair the store of a stopped node
- ``index_check``: compares the index with the rows
- ``orphans``: finds and removes the objects of a stopped node that nobody can reach

``docs/formats.md#the-store-on-disk`` describes the bytes, ``docs/recovery.md`` the repair.
"""

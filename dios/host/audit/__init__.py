"""The audit log: a chained append-only file of principals' operations on objects.

Read in this order:

- ``log``: the format and the writer.
- ``reader``: reading, following and verifying a log.
- ``admission``: refuses calls while the log cannot be written.
"""

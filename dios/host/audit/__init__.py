"""The audit log: a chained append-only file of principals' operations on objects.

Read in this order:

- ``log``: the format and the writer.
- ``reader``: reading, following and verifying a log.
- ``heads``: signed statements about the end of a log, and the comparison with it; ``signing`` signs them.
- ``journal``: merges equal refusals on their way to the log; ``charges`` charges principals for records.
- ``admission``: refuses calls while the log cannot be written.
"""

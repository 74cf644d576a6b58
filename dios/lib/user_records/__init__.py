"""Records that all nodes keep for a user, such as promises and services, and the node that acts on them.

- ``kind``: a kind of records: their special name, stored form, and merge
- ``records``: the records as a user's program reads and changes them
- ``copies``: their copies on all nodes, for the node that acts
- ``leader``: the loop of that node: its right to act, its rounds, and its report
"""

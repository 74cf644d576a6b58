"""Snapshots of sandboxes with an image: the files that they have changed, stored in a group.

Read in this order:

- ``beginning``: the order for what a sandbox begins with, and ``preparation``, which brings it to a node.
- ``snapshots``: the stored snapshot as a value, its place, and the sandboxes that begin with it.
- ``records``: the stored records of a snapshot.
- ``segments``: the pieces of an archive, whose limits depend on its content, so that similar archives share
  most of them.
- ``group_store``: writing these into a group, reading and removing them.

``docs/sandbox.md`` is the guide for users, and ``docs/formats.md`` describes the stored bytes.
"""

"""The environments of a node: folders of installed packages, which its pure tasks see read-only.

- ``store``: all environments on the disk, each of one principal, and their removal.
- ``interpreter``: the Python for which packages must be.
- ``unpacking``: the files of an archive, written into a new folder and compared with their digest.
"""

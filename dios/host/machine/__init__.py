"""The structure, the power and the capacity of this machine, read from procfs and sysfs.

Read in this order:

- ``machine_tree``: the description of a machine as a tree of packages, caches, cores and threads;
- ``topology``: the reader that makes such a description of this machine;
- ``capacity``: the speeds of its links and disks, with short measurements;
- ``power``: the meter of the machine's power;
- ``procfs``: the reader of small text files, also for measurements.
"""

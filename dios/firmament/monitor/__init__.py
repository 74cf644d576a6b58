"""Measurements of a machine and its tasks, from procfs, sysfs and performance counters (§6.5.2, §6.5.3).

Read in this order:

- ``machine_tree``: the description of a machine as a tree of packages, caches, cores and threads;
- ``topology``: the reader that makes such a description of this machine;
- ``task_probe``: the resource use of a task, from procfs;
- ``counters``: the performance counters of a task;
- ``machine_load``: the load of the whole machine;
- ``procfs``: the reader of small text files that all of them use.
"""

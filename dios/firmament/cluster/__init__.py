"""The state of a cluster as tables.

In the order in which to read it:

- ``columns``: tables whose columns are numpy arrays;
- ``state``: the tables of tasks, jobs and resources, which cost models read;
- ``changes``: all changes to the tables, with their sums kept right; only the scheduler calls them;
- ``block_locations``: the machines that hold blocks of input.
"""

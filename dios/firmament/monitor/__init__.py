"""Measurements of a machine and its tasks, from procfs and performance counters (§6.5.2, §6.5.3).

``dios.host.machine`` reads the structure of the machine. Read in this order:

- ``task_probe``: the resource use of a task, from procfs;
- ``counters``: the performance counters of a task;
- ``machine_load``: the load of the whole machine.
"""

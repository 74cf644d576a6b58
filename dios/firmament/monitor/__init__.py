"""Measurements of one machine and its tasks, from procfs, sysfs and performance counters (§6.5.2, §6.5.3).

``topology`` reads the machine's structure, and ``machine_tree`` holds it. ``task_probe`` measures a task
by procfs, ``counters`` by the processor's counters, and ``machine_load`` measures the whole machine.
``procfs`` reads the small text files that all of them need.
"""

"""Simulations in virtual time, on traces and synthetic workloads.

- ``scheduling``: the scheduler on whole clusters (``dios lab simulate``, ``dios lab compare``);
- ``workloads``: the events, machines and tasks of a simulated cluster, generated or read from a trace;
- ``fairness``: fair shares on traces of tasks (``dios lab fair``);
- ``packing``: jobs over time in a data centre (``dios lab pack``).
"""

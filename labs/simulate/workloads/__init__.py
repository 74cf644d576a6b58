"""Workloads of simulated clusters: their machines, jobs and tasks, and when they come.

- ``events``: the events of a simulation, and the queue that orders them by time;
- ``google_like``: a synthetic workload with the published properties of a Google cluster;
- ``mix``: the cluster-mix experiment, whose programs disturb each other;
- ``trace`` and ``trace_rows``: a workload from the 2011 Google cluster trace, and the parser of its tables;
- ``machines``: the machines of the thesis' testbeds and of the Google cluster;
- ``interference``: the speed of programs that share a machine;
- ``block_map``: the machines that hold a task's input.
"""

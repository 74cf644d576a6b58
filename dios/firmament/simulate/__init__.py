"""Simulations of the scheduler on whole clusters, in virtual time (`dios sched simulate`).

Read in this order:

- ``events``: the events of a simulation, and the queue that orders them by time;
- ``workload``: a synthetic workload with the published properties of a Google cluster;
- ``mix``: the cluster-mix experiment, whose programs disturb each other;
- ``trace`` and ``trace_rows``: a workload from the 2011 Google cluster trace, and the parser of its tables;
- ``run``: the simulation loop;
- ``world``: the true state of the simulated machines and tasks;
- ``scheduler_bridge``: the connection between a simulation and its scheduler;
- ``schedulers`` and ``queues``: a scheduler for a name, and the two queue schedulers that serve as baselines;
- ``machines``: the machines of the thesis' testbeds and of the Google cluster;
- ``interference``: the speed of programs that share a machine;
- ``block_map``: the machines that hold a task's input;
- ``measure``: samples of simulated tasks for a knowledge base;
- ``outcome``: the records that a simulation returns;
- ``report`` and ``plots``: summaries and tables, and pictures, of an outcome;
- ``check``: the invariants that hold between a scheduler and the world;
- ``command``: the options of the command line, as a configuration;
- ``compare``: one workload under many models.
"""

"""Simulations of the scheduler on whole clusters (``dios lab simulate``, ``dios lab compare``).

Read in this order:

- ``run``: the simulation loop;
- ``world``: the true state of the simulated machines and tasks;
- ``scheduler_bridge``: the connection between a simulation and its scheduler;
- ``schedulers`` and ``queues``: a scheduler for a name, and the two queue schedulers that serve as baselines;
- ``measure``: samples of simulated tasks for a knowledge base;
- ``outcome``: the records that a simulation returns;
- ``report`` and ``plots``: summaries and tables, and pictures, of an outcome;
- ``check``: the invariants that hold between a scheduler and the world;
- ``command``: the options of the command line, as a configuration;
- ``compare``: one workload under many models.
"""

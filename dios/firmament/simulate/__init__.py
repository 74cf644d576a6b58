"""Simulations of the scheduler on whole clusters, in virtual time (`dios sched simulate`).

Read in this order: ``events`` (what happens to a cluster), the sources of events ``workload`` (a synthetic
cluster), ``mix`` (programs that disturb each other) and ``trace`` with ``trace_rows`` (Google's traces),
then ``run`` (the loop), ``world`` (machines and tasks) and ``scheduler_bridge`` (the interface to
schedulers, which ``schedulers`` lists; ``queues`` has the baselines).

``machines``, ``block_map`` and ``interference`` describe machines, input and co-location. ``outcome``,
``report``, ``plots`` and ``measure`` make the results, ``check`` verifies them, and ``command`` serves the
command line.
"""

"""Benchmarks of DIOS and of the systems that one would use instead.

``make bench`` runs ``run``, which starts each section in a process of its own and writes ``results/`` with
``report``. A section is a module with a function ``run``:

- one node: ``idle``, ``calls``, ``durable``, ``blobs``, ``streams``, ``network``, ``logs``, ``files``,
  ``tasks``, ``security`` with ``security_task``, ``covert``, ``wordcount`` with ``metis``, ``sandbox`` with
  ``isolation``;
- by size and load: ``large_stores``, ``client_tables``, ``many_clients``, ``idle_tasks``, ``contended``;
- calls of functions: ``executor`` with ``executor_calls``, ``executor_start`` and ``executor_tables``;
- several nodes: ``cluster_calls``, ``cluster_reads``, ``cluster_life``, ``cluster_work``, ``node_count``,
  ``guarantees``;
- the scheduler: ``firmament_round``, ``firmament_solvers``, ``long_queues``, on ``networks`` and
  ``flow_families``;
- libraries: ``fairness`` with ``fairness_peak`` and ``fairness_rounds``, ``packer``, ``sprayer`` with
  ``sprayer_loops``.

Sections use ``measure`` (clocks, processors, memory), ``nodes`` (a node), ``cluster`` (several nodes) and
``peers``. ``traced_node`` with ``step_marks`` and ``start_marks``, and ``weakened_node``, are nodes for
measurements alone.

These run on their own: ``soak`` (hours under load), ``load`` (bursts on three nodes), ``neighbours`` (greedy
clients), ``month`` (five nodes with kept data), ``scale`` (simulated clusters), ``deniability`` (times of
lookups), ``dashboard`` (the costs of a viewer), ``kept_files`` with ``kept_files_work`` (two installations),
``paired_trees`` (two source trees), ``pythons`` (versions of Python), ``services``, ``start_steps`` and
``tokens``.
"""

"""A node's coordinator: it keeps track of the cluster, decides where runs go, and answers questions (§6.5.1).

Read in this order: ``main`` (the task's program), ``coordinator`` (the loop), ``assignment`` (which
coordinator is responsible for which nodes; options), ``node_queue`` (the queue of a node), ``cluster_state``
(the tasks and nodes that it knows), ``kept_rooms`` (the reservations that coordinators note for each other),
``cluster_service`` with its subclasses ``start_up_service`` (a simple rule, ``first_fit``, until the kernels
are compiled) and ``scheduler_service`` (the flow scheduler). ``best_effort`` finds places that others
leave idle.

Questions are answered by ``cluster_queries``, ``query_handler`` and ``usage_queries``. Kernels are compiled
by ``kernel_compilation``, ``compile_kernels`` and ``warm_up``. Measurements come from ``node_monitor``,
``observer`` and ``task_tracer``. Bandwidth is divided in
``rate_control`` and ``rate_solver``; ``traffic_monitor`` decides how often traffic is measured.
``outside_load`` has the use of machines by other programs. ``job_traffic`` and ``admissions`` serve jobs over
time, ``node_admission`` has quotas and holdings for the nodes, and ``share_storage`` keeps shares, with the
cost model and the settings of ``live_settings``.
``model_tasks`` runs cost models of operators.
``translate`` describes queue rows for the scheduler, and ``stated_bounds`` has the bounds of jobs.
"""

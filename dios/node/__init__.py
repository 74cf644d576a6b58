"""One node: its settings, its process, and its place in a cluster.

Read in this order:

- ``settings``: all settings of a node; ``limit_text`` and ``addresses`` parse two kinds of values.
- ``daemon``: starts and stops the process; ``serve`` is the life of a node inside it, and
  ``task_zygote`` what runs before the event loop.
- ``continuation``: replaces the program of a running node; ``launch`` is how its process was started, and
  ``restart_status`` the request and the report.
- ``audit_heads``: publishes the heads of the node's audit log, and compares them at the start; ``head_keys``
  signs them, ``head_keepers`` asks other nodes.
- ``fitness``: finds out if this node can run pure tasks, until it knows.
- ``capacity``: finds out what the node's disk and link carry.
- ``assembly``: connects the core and the parts of the host.
- ``cluster``: makes a data directory a member of a cluster; ``cluster_port`` is the port for other nodes,
  ``seeds`` and ``discovery`` find them, and ``certificate_keeper`` renews the node's certificate.
- ``border``: the place where sealed tokens are used, also by trusted clusters.
- ``coordinator_supervisor``: keeps the node's coordinator running.
- ``service_supervisors``: run the supervisors of users' services.
- ``scrubbing``: compares stored objects with their digests in the background, and repairs them.
- ``metrics``: the metrics of a node, its scheduler and its network functions, for Prometheus;
  ``exporter_places`` are the addresses at which they may be served.
- ``environment_table``: the environments of tasks, for ``dios env``.
- ``log_table``: the newest records of the node's log, for ``dios node logs``.
- ``local_cluster``: a cluster of nodes on one machine (``dios up``).
- ``check``: verifies and repairs the data of a stopped node; ``doctor`` examines the machine.
- ``machine``: the memory, the name and the processors of the machine; ``devices``: its devices for tasks.
- ``bringup``: a cluster on other machines: by ssh, in Slurm, in Kubernetes.
- ``live_labels``: the rack and labels that a running node was given.
"""

"""Libraries on the calls of a node, built like any application.

- ``executor``: ``dios.Executor``, calls in tasks that stay warm, as in ``concurrent.futures``
- ``sandbox``: ``dios.Sandbox``, a session in a pure task for code that nobody has read
- ``sandbox_server``: sandboxes over HTTP, also for the clients of E2B
- ``environments``: packages that a user installs for tasks; ``images``: root file systems of sandboxes
- ``spawn``: a function call as a pure task, with a future (``spawned`` is the code in the task);
  ``exact_values`` keeps the types of its arguments and results
- ``channels``: typed channels between tasks
- ``mutex``, ``clock``: a lock with leases and fencing tokens, Lamport's clock; ``aio`` has both, async
- ``keyvalue``: a replicated key-value store over ``replicated_index``, a map with majorities;
  ``store_keeper`` replaces its lost hosts
- ``replicated_record``: a record in several replicas with one history, for the lists of files
- ``mapreduce``: MapReduce jobs; ``jobs`` is the implementation
- ``movable``: runs that go on elsewhere when their task must leave its node
- ``services``: tasks that accept connections, found by name
- ``supervised``: replicas of programs that the cluster keeps running
- ``kept``: replicas of objects whose number the cluster keeps
- ``user_records``: the records of both on all nodes, and the node that acts on them
- ``catalogue``: lists of stored objects; ``files``: the files of groups, and the fsspec file system
- ``packs``: encrypted bytes in other stores; ``backup``: snapshots there
- ``tokens``: sealed tokens, which give a right to files to other people and clusters
- ``reservations``: jobs with needs over time (Packer)
- ``pickers``: the choice among replicas; ``retrying``: repetition of attempts that conflict
- ``closing``: closing references whose nodes may be gone; ``decoding``: bytes that others have made
- ``amounts``: amounts of memory and of time in arguments
- ``counters``: sizes and counters of labelled objects, which are hidden from a task until it reads them
- ``debugger``: Python's debugger inside a task; ``task_output``: the last part of a task's output

``docs/libraries.md`` is the guide for their users.
"""

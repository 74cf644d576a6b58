"""Libraries on the calls of a node, built like any application.

- ``spawn``: a function call as a pure task, with a future (``spawned`` is the code in the task)
- ``channels``: typed channels between tasks
- ``mutex``, ``clock``: a lock with leases and fencing tokens, Lamport's clock; ``aio`` has both on trio
- ``keyvalue``: a replicated key-value store over ``replicated_index``, a map with majorities
- ``mapreduce``: MapReduce jobs; ``jobs`` is the implementation
- ``services``: tasks that accept connections, found by name; ``catalogue``: lists of stored objects
- ``reservations``: jobs with needs over time (Packer)
- ``pickers``: the choice among replicas; ``retrying``: repetition of attempts that conflict
- ``debugger``: Python's debugger inside a task

``docs/libraries.md`` is the guide for their users.
"""

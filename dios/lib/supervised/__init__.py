"""Supervised services: programs of which the nodes keep a number of replicas running (thesis §3.3, §6.5).

A user's program records what it wants with ``Services``; ``docs/kept-jobs.md`` shows that. Read in order:

- ``records``: a service as bytes that every node keeps, and its changes
- ``arrays``: the indices of a kept job that is an array, as text
- ``predecessors``: the runs after which another one begins, and if they have done what they have to
- ``decisions``: the replicas to start and to stop next, as a function without effects
- ``pauses``: the pauses before restarts
- ``supervisor``: starts, watches and replaces the replicas of one user; the leading node runs it
- ``services``: the interface for users' programs; ``service_files``: services in TOML files
- ``kept_jobs``: the interface for kept jobs, services that end; ``kept_state``: what their programs save
- ``autoscaling``: changes the number of replicas with the load
"""

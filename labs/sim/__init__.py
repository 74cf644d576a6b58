"""A deterministic simulator: nodes and whole clusters in virtual time, with seeded faults.

``python -m labs.sim`` runs it for many seeds. Read the modules in this order:

- ``event_queue``: virtual time and the actions that wait for it.
- ``step_work``: the work of each step of a core, which is bounded.
- ``memory_store``: a store without a disk.
- ``disk``: a disk that fails, and a store on it.
- ``node``: one node with clients that record what it promised, and the checks after every crash.
- ``cluster``: several nodes, their network, a fault injector, simulated clients, and the checks.
- ``kept``: the keepers of replicas, on a model of nodes, and their claims.
- ``queues``: the scheduler's queue, in which nobody within his right waits for ever.
- ``scale``: clusters of up to thousands of nodes without checks, and what each node costs.
"""

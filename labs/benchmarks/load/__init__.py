"""Bursts on a cluster of three nodes, ``make load``: runs, clients and objects by the thousand.

Run it with ``python -m labs.benchmarks.load``. Read the modules in this order:

- ``phases``: the bursts: what they do, and what they check.
- ``watch``: a neighbour whose short calls are timed meanwhile, and the processor time of the coordinator.
- ``results``: the table.
"""

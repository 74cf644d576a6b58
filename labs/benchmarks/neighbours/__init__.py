"""Innocent calls next to greedy neighbours, ``make neighbours``: how long each kind of neighbour delays them.

Run it with ``python -m labs.benchmarks.neighbours``. Read the modules in this order:

- ``kinds``: the kinds of greedy neighbours, written once for a real node and for a core without a clock.
- ``clients``: a greedy neighbour on a real node, in a process of its own.
- ``innocent``: the client whose calls are timed.
- ``run``: the course of a run; ``results``: its table.

``tests/property/test_greedy_neighbours.py`` drives the core with the same kinds and bounds the work of each.
"""

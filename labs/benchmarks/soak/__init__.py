"""The soak test: one node under mixed load for minutes or hours, with random kills; nothing may grow.

Run it with ``python -m labs.benchmarks.soak``. Read the modules in this order:

- ``run``: the course of a run, load and rest in turn.
- ``client``: one client process; ``tasks`` are its tasks, ``task_program`` is their program,
  ``abrupt_connections`` are its bad disconnects, ``data`` is its test data.
- ``shared_table``: the memory that the run and its clients share.
- ``sampler``: measurements of the node from outside.
- ``verdict``: which measurements grow; ``report``: the result as Markdown, JSON and a figure.
"""

"""Firmament: a scheduler that solves minimum-cost flow problems (thesis chapters 5 to 7).

In the order in which to read it:

- ``descriptors``: tasks, jobs and machines as callers describe them; ``settings``: the scheduler's settings;
  ``parameters``: how an operator writes them;
- ``cluster``: the tables of tasks, jobs and resources;
- ``models``: cost models, which give the arcs of the network their costs;
- ``policies``: the rules that costs cannot express: constraints, gangs, fair shares, turns, resource fit;
- ``network``: the flow network of a round, made from tables, answers and policies;
- ``solvers``: minimum-cost flow as a library of its own, which knows neither tasks nor machines;
- ``rounds``: one round, from the selection of tasks to the list of changes;
- ``scheduler``: the scheduler itself: events in, rounds, changes out;
- ``explain``: why a task waits or runs where it does;
- ``custom_model``: cost models of operators, checked and run in a confined task;
- ``monitor``: measurements of machines and tasks; ``knowledge``: profiles made from measurements;
- ``coordinator``: the process that schedules a cluster of nodes;
- ``compile_kernels``: the command that compiles the numeric kernels in advance.
"""

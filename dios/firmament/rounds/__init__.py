"""Scheduling rounds.

In the order in which to read it:

- ``results``: the result of a round: changes, faults and figures;
- ``model_guard``: calls to cost models with a time limit;
- ``solver_chain``: solvers one after the other, until one gives a checked solution;
- ``round_maker``: one round, from the selection of tasks to the comparison of places; also trial rounds.
"""

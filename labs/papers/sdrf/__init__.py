"""The SDRF paper's evaluation (section VII) on synthetic months: ``dios lab repro sdrf``.

Read the modules in this order:

- ``evaluation``: the figures and the function that makes them;
- ``months``: the simulated months that several figures share;
- ``spike``: Figures 1 and 4;
- ``waits``: Figures 5 and 6;
- ``events``: Figure 7, with ``tree_replay``, the replay of a month through the live tree;
- ``tree_cost``: the cost of a decision.
"""

"""Stateful DRF (SDRF) for tasks that cannot be divided, after the SDRF paper.

Read the modules in this order:

- ``input_checks``: the arguments that the scheduler and the simulation accept;
- ``exact_slopes``: commitments as exact sums, however small they are;
- ``user_table``: the arrays with each user's share and commitment, as lines over time;
- ``tree_kernels``: the compiled live tree that keeps waiting users in order;
- ``kernels``: the compiled decision, and the effect of an allocation on commitments;
- ``exact_order``: the order of users whose priorities floats do not distinguish;
- ``scheduler``: :class:`SdrfScheduler`, event by event;
- ``user_tree``, ``priority``: the compiled tree as a class, and its priority in plain Python (equations 13
  and 14).
"""

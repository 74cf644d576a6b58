"""DC-DRF: extended DRF with a deadline, one allocation for each control interval (DC-DRF paper, Algorithm 2).

Read the modules in this order:

- ``epsilon``: the search for the precision that the deadline allows;
- ``columns``: demands checked, scaled and indexed by resource;
- ``kernels``: the compiled inner loops;
- ``allocator``: :class:`DcDrf`, which runs the rounds of an interval until its deadline.
"""

"""The DC-DRF paper's evaluation (section 5): ``dios lab repro dc-drf``.

Read the modules in this order:

- ``evaluation``: the figures and the function that makes them;
- ``clouds``: synthetic clouds with their exact shares, shared by all figures;
- ``algorithm_1``: the paper's baseline as printed, timed;
- ``demand_profiles``: Figures 3 and 7;
- ``threads``: Figures 5 and 6;
- ``deadlines``: Figures 8, 9 and 10;
- ``changes``: Figure 11.
"""

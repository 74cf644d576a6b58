"""Heterogeneity and interference of machines (thesis chapter 2), measured on the machine at hand.

- ``evaluation``: Figures 2.4 to 2.8, and the functions that make them; read it first;
- ``places``: pairs of hardware threads by the caches that they share, and what this machine lacks;
- ``program``: the workloads, as a program that is pinned to a thread (Tables 2.1 and 2.3);
- ``measure``: runs workloads alone and together, and returns slow-downs;
- ``machine``: the machine's speeds and its structure (Figures 2.4 and 2.5);
- ``pairs``: matrices of pairs of workloads (Figure 2.6), also for ``dios lab calibrate``;
- ``crowds``: many workloads at once (Figure 2.7);
- ``system_calls``: the calls that applications make (Figure 2.8).
"""

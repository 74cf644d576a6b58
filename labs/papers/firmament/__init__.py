"""The Firmament evaluation (thesis, chapter 8) on simulated clusters: ``dios lab repro firmament``.

Read the modules in this order:

- ``evaluation``: the figures and the function that makes them;
- ``mix``: Figures 8.1 to 8.4, the cluster mix, and ``whare``: the variants of Whare-Map there;
- ``green``: Figures 8.5 and 8.6, with ``green_lab``, the simulated machines and work;
- ``solver``: Figure 8.7, solver time.
"""

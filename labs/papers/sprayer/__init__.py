"""The Sprayer evaluation (thesis, sections 3.4 and 3.5): ``dios lab repro sprayer``.

Read the modules in this order:

- ``evaluation``: the figures and the function that makes them;
- ``runs``: the measurements that the figures share;
- ``rates``: Figures 3.6a and 3.7a, with ``prediction`` for more cores;
- ``connections``: Figures 3.6b, 3.7b and 3.9;
- ``delays``: Figure 3.8;
- ``quic``: QUIC, which section 3.5 names as a flow to spray;
- ``trace``: Figures 3.1 and 3.2 from a capture (``dios lab flows``);
- ``lab``: the test lab that measures network functions on one machine.
"""

"""The commands below ``dios lab``. They need no node, except ``dios lab calibrate --set``.

``main`` assembles them and lists the types of their JSON. A command's module is imported when it is used.

- ``experiments``: ``dios lab repro``, the experiments of the papers (``labs.papers``);
- ``simulate``, ``compare``: hours of a cluster under the scheduler, with one cost model or all of them;
- ``fair``, ``pack``: fair shares on traces, and policies of packing on jobs over time;
- ``calibrate``: the interference between programs on this machine, for cost models;
- ``solve``: the cheapest flow of a network;
- ``flows``: the flows of a capture of packets.
"""

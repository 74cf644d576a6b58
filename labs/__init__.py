"""The laboratory of DIOS: experiments, simulations and measurements, which no user's machine runs.

It is a package of its own (``dios-labs``) that imports ``dios``; ``dios`` never imports it. ``make setup``
installs both. The package adds ``dios lab`` to the commands.

- ``commands``: the commands below ``dios lab``;
- ``papers``: the experiments of the papers that DIOS implements (``dios lab repro``);
- ``simulate``: the scheduler, fair shares and packing on traces and synthetic workloads, in virtual time;
- ``solvers``: further algorithms for the cheapest flow;
- ``sim``: the simulator that looks for defects of nodes and clusters (``make sim``);
- ``benchmarks``: measurements of DIOS and of comparable systems, with their results;
- ``examples``: programs that use the generators of workloads;
- ``plotting``: plots as data, drawn by matplotlib; ``limits``: the bounds of simulations.
"""

"""Benchmarks of DIOS and of the systems that one would use instead.

``make bench`` runs ``run``, which starts each section in a process of its own and writes ``results/`` with
``report``. A section is a module with a function ``run``, such as ``calls``, ``blobs`` or ``cluster_reads``;
it uses ``measure`` (clocks, processors, memory), ``nodes`` (a node) or ``cluster`` (several nodes), and
``peers``.

``soak`` is a test of hours under load, ``deniability`` a timing test of names, and ``paired_trees`` compares
the calls of two source trees; they run on their own.
"""

"""Clusters of whole cores in virtual time, with a real coordinator: ``python -m labs.benchmarks.scale``.

- ``virtual_time``: a clock for trio that follows a simulation.
- ``coordinated``: the coordinator of one simulated node, with its connection to that node.
- ``phases``: what happens to a cluster, and what each part of it costs.
- ``__main__``: the tables of costs against the number of nodes, with the exponents that fit them.
"""

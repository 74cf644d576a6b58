"""A simulated disk and a store on it.

Read the modules in this order:

- ``faults``: the disk operations, their faults, and plans that decide where a fault happens.
- ``device``: the disk, with a write cache, torn pages and power cuts.
- ``model_extents``, ``model_store``: the algorithm of the real store, step by step on that disk.
"""

"""Fair shares on traces of tasks: waiting under SDRF and DRF, and the traces themselves.

- ``simulate``, ``simulate_by_tree``: a whole trace of tasks through SDRF or DRF;
- ``trace``, ``google_like``: inputs, read from a trace or generated from a seed;
- ``generate_demands``: demands of many tenants at one moment, from a seed;
- ``trace_report``: waiting times and completed tasks of a simulated trace.
"""

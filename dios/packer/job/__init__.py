"""Descriptions of jobs: their needs over time, their text format, and jobs made from measurements.

Read the modules in this order:

- ``ti_mra``: :class:`TiMra`, the graph of tasks, services and edges, and its validation;
- ``ti_mra_toml``: jobs as TOML, read and written;
- ``timeline``: measurements of earlier runs on the instants of a job;
- ``learned``: jobs made from those measurements (``dios pack learn``).
"""

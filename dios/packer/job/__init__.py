"""Descriptions of jobs: their needs over time, their text format, and jobs made from measurements.

Read the modules in this order:

- ``ti_mra``: :class:`TiMra`, the graph of tasks, services and edges, its validation, and jobs as TOML;
- ``timeline``: measurements of earlier runs on the instants of a job;
- ``learned``: jobs made from those measurements (``dios pack learn``).
"""

"""A node's metrics, and the text format of Prometheus.

A metric is one entry in one of three tables, with the function that reads it. Read in this order:

- ``family``: the type, labels, meaning and reader of a metric.
- ``of_node``, ``of_scheduler``, ``of_functions``: the metrics of a node, of its scheduler, and of the network
  functions of this machine.
- ``registry``: all of them, and their values.
- ``text``: turns readings into the text format.
- ``exporter``: serves that text over HTTP, in a process of its own that ``keep_exporter`` restarts.
"""

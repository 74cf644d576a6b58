"""A node's metrics in the text format of Prometheus.

Read in this order:

- ``families``: the name, type, labels and meaning of every metric.
- ``readings``: reads the metrics of a node, of its scheduler, and of the network functions of this machine.
- ``text``: turns readings into the text format.
- ``places``: the addresses at which metrics may be served.
- ``exporter``: serves that text over HTTP.
"""

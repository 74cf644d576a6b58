"""Views of a running cluster for people and their tools. Each is a client of a node like any other.

- ``metrics``: numbers for Prometheus.

Nothing here runs inside of a daemon, and each view shows what its user may see.
"""

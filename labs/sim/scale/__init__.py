"""Large clusters in virtual time: up to thousands of whole cores, and what each of them costs.

- ``nodes``: machines, their connections on demand, sessions and tasks; racks fail, and partitions heal.

``labs.benchmarks.scale`` runs them with a real coordinator, and prints the costs against the number of nodes.
"""

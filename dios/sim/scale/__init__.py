"""Large clusters in virtual time: up to thousands of nodes with few features, and what each of them costs.

- ``members``: nodes that run the membership protocol alone, with connections on demand; racks fail and heal.
- ``__main__``: the table of costs against the number of nodes, with the exponents that fit them.
"""

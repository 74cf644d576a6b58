"""The test suites that other projects publish, run against this project from their packages.

``suites`` runs one in a process of its own and returns its outcomes; ``chosen_cases`` leaves out cases. The
plugins put an executor of this project where the suite would use its own: ``dask_plugin``.
"""

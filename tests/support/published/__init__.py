"""The test suites that other projects publish, run against this project from their packages.

``suites`` runs one in a process of its own and returns its outcomes; ``chosen_cases`` leaves out cases.
``dask_plugin`` puts an executor of this project where Dask would use its own. ``pathlib_cases`` is the class
that universal_pathlib asks for.
"""

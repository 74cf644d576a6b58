"""Plant faults in a package and count those that its tests detect: ``make mutants PACKAGE=dios/core``.

- ``generate``: a sample of mutants of a package.
- ``run``: runs the tests that reach each mutant, and reports the mutants that survive.
"""

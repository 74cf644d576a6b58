"""Commands about tasks.

- ``run``: ``dios run``; ``work_options`` are its options for the scheduler, ``gang`` runs several tasks,
  ``job`` runs a job description.
- ``control``: ``dios ps``, ``logs``, ``pause``, ``resume`` and ``kill``.
- ``describe``, ``debug``, ``shell``: the commands of these names.
- ``endings``: sentences about how a task ended.
"""

"""Commands about the cluster's scheduler.

``sched`` is the family ``dios sched`` and defines no command itself: ``live`` has the commands that ask a
running coordinator. ``start_queues`` explains runs that wait on a node and that no coordinator decides about,
and ``waiting_runs`` says in one line why a run waits. ``shares`` shows and sets each principal's part of the
cluster.
"""

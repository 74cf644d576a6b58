"""Commands about the cluster's scheduler.

``live`` is the family ``dios sched``, which asks a running coordinator. ``start_queues`` explains runs that
wait on a node and that no coordinator decides about, and ``waiting_runs`` says in one line why a run waits.
``shares`` shows and sets each principal's part of the cluster.
"""

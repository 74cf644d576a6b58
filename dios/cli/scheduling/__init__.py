"""Commands about the cluster's scheduler and about fair shares.

``sched`` is the family ``dios sched`` and defines no command itself: ``live`` has the commands that ask a
running coordinator, ``calibrate`` measures this machine for its cost models, ``simulate`` has ``dios sched
simulate`` and ``compare`` has ``dios sched compare``.
``start_queues`` explains runs that wait on a node and that no coordinator decides about, and
``waiting_runs`` says in one line why a run waits.
``shares`` shows and sets each principal's part of the cluster. ``fair`` and ``solve`` need no cluster: they
compare fairness mechanisms on traces and solve flow networks.
"""

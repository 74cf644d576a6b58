"""Rules that hold for every cost model: constraints, gangs, fairness, and jobs over time.

Restrictions of single tasks: ``labels`` (machines by label), ``restrictions`` (the filter of each task)
and ``filters`` (filters applied to arcs). Jobs: ``gangs``, ``job_bounds`` (waiting tasks within E_j
and F_j), ``fairness`` (max-min shares) and, after the solution, ``fit`` (placements that do not fit
together) and ``evict`` (preemption for other resources than slots).

Principals: ``principal_accounts`` (weights, quotas, commitments), ``fair_queue`` with
``fair_queue_kernels`` (the order of waiting tasks), ``predicted_turns`` (when each is the next
one), ``backlog`` (the tasks of long queues) and ``stored_shares`` (the stored form). Machines that are
kept for large tasks: ``reservations``, by ``room_in_time``. Jobs over time: ``packed_jobs`` and
``packing``.
"""

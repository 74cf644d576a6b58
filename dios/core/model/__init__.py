"""The data of a node: records, tables, and their invariants.

- ``records``: objects, references, tasks, buffers and waiting calls, which refer to each other.
- ``state``: all tables of a node. Its parts: ``name_table``, ``pending`` (waiting calls), ``expiries``
  (references with an end), ``submission_queue`` (runs that wait for a node) with ``scheduler_leases``
  (those who place them), ``start_queue`` (runs that wait for room on it), ``quotas`` (of the cluster),
  ``moves`` (tasks that have to end by a time).
- ``rows``: the source of stored rows that the core reads when they are named.
- ``accounts``: the use and the limits of tasks, groups, principals and the node.
- ``io_requests``: admission and validity of requests (Table 4.5), as arithmetic on one object.
- ``history``: what is kept of ended tasks, divided among principals. ``story``: the newest events.
- ``names``: the construction of names. ``secrecy``: labels of objects and tasks;
  ``origins``: the party that chose each field of an answer; ``disclosure``: the fields that are replaced.
- ``type_rules`` and ``type_states``: the abilities and the state of each type.
- ``work_items``: long work that steps have begun and further steps continue.
- ``defects``: the number of exceptions in the work for each user and node.
- ``placement``: the choice of a node without a scheduler; ``invariants``: the check of all tables.
"""

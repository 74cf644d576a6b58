"""The system calls (thesis appendix B), and the beginning and end of tasks and sessions.

Begin with ``dispatch``, which finds the function for a call by ``handlers``, and ``rights``, the checks that
calls share. The facts about each call are a row of ``dios.wire.call_table``.
Before, a call may have to wait at the ``entrance`` while other nodes have leases on its objects, and
``flows`` checks secrecy labels.

- Objects: ``object_calls`` (create, delete, stat), ``resolution`` (names to references), ``groups``,
  ``sharing`` (groups that others may read), ``tokens`` (sealed tokens), ``delegation`` (copy),
  ``retirement`` (taking references back).
- Input and output: ``io_calls`` and ``compound_calls`` on ``io_steps``, which they share;
  ``computed_objects`` (types without stored content), ``durable_streams``, ``network_streams``.
- Tasks: ``run_calls`` (run), ``submissions`` (runs that wait for a node),
  ``own_rule`` (those that the node starts itself, and schedulers without progress),
  ``waiting_starts`` (runs that wait for room on their node), ``run_orders`` (the recipe of the
  child), ``admission`` (the child's limits), ``starting`` (the child's records), ``lifecycle`` (beginning and
  end), ``threads`` and ``devices`` (those that a task gets), ``task_calls`` (pause, resume, select,
  attach, cancel), ``logs`` (the stored output of ended tasks). ``moves`` asks tasks to leave the node, and
  ends those that have used up their time.
- Users with keys: ``user_keys``.
- The records of users' services and kept replicas: ``user_records``.
- The node: ``introspection`` and ``tables`` (rows of the node's tables), ``limit_calls``,
  ``node_calls``, ``scheduling_calls`` and ``rate_calls`` (calls of the scheduler).
"""

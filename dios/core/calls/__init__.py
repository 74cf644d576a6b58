"""The system calls (thesis appendix B), and what tasks and sessions do at their beginning and end.

Begin with ``dispatch``, which finds the function for a call, and ``access``, the checks that calls share.

- Objects: ``object_calls`` (create, delete, stat), ``resolution`` (names to references), ``groups``,
  ``delegation`` (copy), ``retirement`` (taking references back).
- Input and output: ``io_calls`` and ``compound_calls`` on ``io_steps``, which they share;
  ``computed_objects`` (types without stored content), ``durable_streams``, ``network_streams``.
- Tasks: ``run_calls`` (run), which leads through ``submissions`` (waiting for a place), ``run_orders`` (what
  is asked for), ``admission`` (what the child may use) and ``starting`` (the child); ``lifecycle`` (begin
  and end), ``task_calls`` (pause, resume, select, attach, cancel), ``logs`` (what tasks wrote).
- The node: ``introspection``, ``tables`` (rows of the node's tables), ``limit_calls``, ``node_calls``,
  ``scheduling_calls`` and ``rate_calls`` (calls of the scheduler).
"""

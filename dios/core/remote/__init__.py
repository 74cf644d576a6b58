"""Other nodes: requests to them, their requests to this one, and agreement on who holds what (thesis §4.8).

- Data: ``peers`` (the other nodes, requests and proxies), ``continuations`` (what goes on with an answer),
  ``watermark`` (which requests need no answer any more), ``cached_replies`` (answers kept for repeats).
- Asking: ``requests`` numbers, sends and repeats; ``resume`` goes on with the answers.
- Calls that leave the node: ``forwarding`` (one object), ``remote_calls`` (a named node, or several),
  ``remote_lookup`` (names), ``remote_run`` (tasks).
- Answering: ``serving`` with ``validation`` of what other nodes send; ``remote_tasks`` (records of their
  tasks), ``replication`` (copies of objects).
- Keeping up: ``proxies``, ``publication`` (counters), ``notices`` (events for tasks), ``reconciliation``
  (agreement after a loss), ``cluster_events`` (nodes come, go and die).
"""

"""Work with other nodes: send requests, serve their requests, and agree on reference counts (thesis §4.8).

A good order to read the modules:

- Data: ``peers`` (the other nodes, pending requests and proxies), ``continuations`` (the next step after an
  answer), ``watermark`` (the requests whose answers are no longer needed), ``cached_replies`` (answers that
  are kept for repeated requests).
- Sending: ``requests`` numbers, sends and repeats requests; ``resume`` runs the continuations of answers.
- Calls that leave the node: ``forwarding`` (calls on one object), ``remote_calls`` (calls to a named node or
  to several nodes), ``remote_lookup`` (name resolution), ``remote_run`` (starts of tasks).
- Reads: ``version_cache`` (the kept versions of other nodes' objects), ``cached_reads`` (their use).
- Leases: ``lease_table`` (their state), ``granted_leases`` (on this node's objects), ``held_leases`` (of this
  node's tasks).
- The index of names: ``name_index`` (its state), ``registration`` (its upkeep and its answers).
- Secrets: ``generations`` changes the cluster's secret.
- Users: ``authority`` decides which users another node may act for, ``mandate_table`` chooses the mandates
  that go with a request.
- Serving: ``serving`` handles requests after ``validation`` has checked them; ``remote_tasks`` has the
  records of other nodes' tasks, ``replication`` makes copies of objects, ``keepers`` says which nodes may
  store durably for others.
- Consistency: ``proxies`` (records of other nodes' objects), ``publication`` (object counters), ``notices``
  (events for tasks), ``reconciliation`` (agreement after a loss), ``cluster_events`` (nodes connect, die and
  return), ``removals`` (nodes leave the cluster for good), ``node_list`` (the list of
  nodes, and the calls that wait for its changes).
"""

"""``dios sandbox serve``: a server that offers sandboxes over HTTP to clients that people already have.

Read in this order:

- ``operations``: one row for each operation, from which routes, the OpenAPI document and tables follow;
  ``e2b_api`` and ``e2b_agent`` have the rows of E2B's interfaces, ``rest`` those of the server's own.
- ``holder``: the sandboxes of each key, their bounds and their ends; ``held``: one of these sandboxes,
  and ``inside``, which runs in its session.
- ``keys``: the keys of clients; ``templates``: the file of settings; ``failures``: kinds of failures.
- ``http``: the server, which bounds a request before it knows who asks; ``routes`` leads it to its operation;
  ``serving`` opens the address, and ends everything at a signal.
"""

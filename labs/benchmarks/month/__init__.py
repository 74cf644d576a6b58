"""A scripted month in an hour: five nodes with kept data, a service and jobs, and what happens to machines.

- ``site``: the machines, and the commands that are typed on them.
- ``work``: the users: files that are put and read, a service, jobs, and what was acknowledged to them.
- ``plan``: the days of the month, each with an event and the commands that it needs.
- ``verdict``: the check at the end.

``make month MINUTES=60`` runs it, and writes ``labs/benchmarks/results/month.md``.
"""

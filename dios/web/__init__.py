"""Views of a running cluster for people and their tools. Each is a client of a node like any other.

- ``observation``: what a user can see of a cluster, read at a bounded rate. The next shows it.
- ``dashboard``: pages in a browser (``dios ui``).
- ``terminal``: a live overview in a terminal (``dios top``).
- ``report``: a page about a job as a file (``dios report``).

Nothing here runs inside of a daemon, and each view shows what its user may see.
"""

"""The containers of tasks that have the root file system of an image, and the OCI runtime that makes them.

Read in this order:

- ``runtimes``: the OCI runtimes of this machine, and the files that each needs.
- ``container``: the view of a zygote whose tasks run in containers, and the steps of such a task up to the
  start of its runtime.
- ``bundle``: the order to the runtime: mounts, namespaces, capabilities; ``calls``: the permitted system
  calls.
- ``first_process``: the program with the number 1 in a container; ``entry_points`` runs the program of a
  task there, and in the children of zygotes.
"""

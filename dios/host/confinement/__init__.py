"""Everything that confines a pure task: namespaces, file system view, capabilities, system calls, limits.

The zygote and its children use these modules; they avoid heavy imports. Read in this order:

- ``lockdown``: the sequence of steps by which a new child gives up its rights.
- ``view``: the read-only root directory; ``private_folder``: a task's own; both use ``memory_mounts``.
- ``namespaces``, ``privileges``, ``landlock``: the other steps.
- ``policy``: the table of allowed system calls with reasons; ``arguments``: that of their arguments.
  ``seccomp`` compiles both into a filter with the ``syscall_numbers`` of the calls. ``notifications`` answers
  calls that a filter leaves to a listener.
- ``native_programs``: the files of programs that a task may become.
- ``limits_of_task``, ``cgroups``: limits of one process, and of all processes of a task.
- ``enforcement``: the resources of which a task can be held to its part.
- ``mechanisms``: finds out which mechanisms this machine has; ``probing`` tries each.
- ``linux_calls``: system calls that Python does not offer.
"""

"""Code that all commands share.

- ``context``: a connected node with the user's keyring, and the meaning of NAME, TASK and ALIAS arguments.
- ``output``: tables, JSON, progress, and errors with the next command to try.
- ``failures``: the files that a command could not handle, listed at its end.
- ``application``: the applications of Typer that the commands are made of, their help and their errors.
- ``spellings``: the old names of commands and options.
- ``lazy``: a table of commands, each of which is imported when it is used.
- ``added_commands``: the commands that other installed packages add to ``dios``.
- ``options``: options and arguments, alone or in groups.
- ``rows``, ``results``: what commands print, as text or as JSON, and the options that say so.
- ``completion``: what a shell proposes for groups, paths, nodes, tasks and services.
- ``extras``, ``principals``, ``signals``, ``streams``: missing packages, names of users, SIGTERM and SIGHUP,
  closed standard streams.
- ``private_files``: files with a secret, for as long as a command runs.
"""

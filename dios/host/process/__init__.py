"""The processes of tasks, and the connections of tasks and of users' programs.

Every task is forked from a zygote: a small process that is set up in advance. Read in this order:

- ``task_host``: starts tasks, serves their calls and those of users' sessions, reports their ends.
- ``session_server``: accepts the connections of users' programs.
- ``zygote_pool``: keeps pure tasks ready to start; ``zygote_link`` talks to one zygote process, in the
  messages of ``zygote_messages``; ``zygote_main`` is the program that the zygote process runs.
- ``task_process``: one task's process, and the explanation of how it ended.
- ``last_exception``: finds a traceback's exception in the text that a task printed.
"""

"""The processes of tasks, and the connections of tasks and of users' programs.

Every task is forked from a zygote: a small process that is set up in advance. Read in this order:

- ``task_host``: starts tasks, serves their calls and those of users' sessions, reports their ends.
- ``held_shares``: the shares of the machine to which tasks of jobs over time are held.
- ``call_turns``: the order in which their connections make calls.
- ``session_server``: accepts the connections of users' programs.
- ``zygote_pool``: keeps pure tasks ready to start; ``lineages``: those that were forked from one zygote.
  ``zygote_link`` talks to one zygote process, in the messages of ``zygote_messages``; ``zygote_process``
  starts it, ``zygote_main`` is its program.
- ``templates``: sets of modules from which tasks start, as ``template_setting`` describes them;
  ``prepared_tasks``: the processes of a template that wait for a task;
  ``template_supervisor`` is the part of a zygote for them, and ``template_process`` loads the modules.
- ``session_families``: the supervisor's part for forks of sessions, which ``session_fork`` makes in them;
  both parts of the supervisor look at processes with ``process_table``.
- ``failure_pause``: the growing pause after processes could not be made in advance.
- ``task_process``: one task's process, and the explanation of how it ended; ``descendants``: the processes
  that it has started.
- ``descriptor_limit``: raises the limit of open descriptors.
- ``last_exception``: finds a traceback's exception in the text that a task printed.
- ``zygote_start`` is the program of a zygote.
"""

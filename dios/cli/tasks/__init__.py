"""Commands about tasks.

- ``run``: ``dios run``; ``work_options`` are its options for the scheduler, ``run_files`` its inputs and
  outputs, ``gang`` runs several tasks, ``job`` runs a job description, ``predecessors`` waits for other runs.
- ``service``: ``dios service``, replicas of a program that the cluster keeps running.
- ``kept_jobs``: ``dios attach`` and ``dios job``, programs that the cluster runs until they are done.
- ``listing``: ``dios ps``. ``control``: ``dios logs``, ``pause``, ``resume`` and ``kill``.
- ``top``: ``dios top``, all of them in a live overview.
- ``report``: ``dios report``, a page about a job as a file.
- ``trace``: ``dios trace``, what the calls of a command took.
- ``describe``, ``debug``, ``shell``: the commands of these names.
- ``sandbox``: ``dios sandbox``, code that nobody has read; ``mcp_server``: ``dios mcp``, for agents;
  ``kernel``: ``dios kernel``, for notebooks; ``sandbox_options``: the options of all three;
  ``sandbox_completion``: the Tab key at the prompt of ``dios sandbox shell``; ``sandbox_exec``: the
  streams and the terminal of ``dios sandbox exec``; ``sandbox_serve``: ``dios sandbox serve`` and
  ``key``, a server for clients of E2B and of HTTP.
- ``template``: ``dios template``, modules that tasks share; ``env``: ``dios env``, packages of tasks.
- ``endings``: sentences about how a task ended; ``task_row``: a task in JSON.
"""

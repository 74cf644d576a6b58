"""``dios.Sandbox``: a stateful Python session in a pure task, for code that nobody has read.

Read in this order:

- ``sandbox``: the class for users, and ``async_sandbox`` the one for programs on asyncio and trio;
  ``result``: what ``run`` returns, and ``errors``.
- ``ops``: the operations of both classes, as generators of ``steps``.
- ``link``: the task of a session, its streams, and one exchange of an order and its answer.
- ``protocol``: the records on these streams; ``bounds``: the sizes that the caller enforces, and
  ``pictures`` those in the heads of pictures; ``harmless_html`` rebuilds HTML of a session.
- ``session``: the program of the task, on the other side; ``failures`` describes exceptions there,
  ``display`` figures and tables, ``notebook_display`` values in the forms of notebooks,
  ``descriptions`` describes values, ``cell_loop`` runs cells that await, and ``forking`` makes
  another session of the process;
  ``session_warm_up`` runs a few orders of nobody in templates and prepared processes.
- ``blocking_steps`` and ``async_steps`` take the steps of both classes.
- ``process`` and ``async_process``: a handle of a program that runs next to others; ``processes`` has its
  operations, and runs it in the session.
- ``programs``: a program of an image, run by the session; ``changes``: the files that it has changed there.
- ``network``: HTTP requests of a session to the origins that its caller granted.
"""

"""``dios.Executor``: a ``concurrent.futures.Executor`` whose calls run in sandboxed tasks that stay warm.

Read in this order:

- ``executor``: the class for users, and its futures (``futures``).
- ``pool``: the thread that moves calls and results through the streams of the workers.
- ``lifecycle``: the thread that starts and ends workers; ``output`` shows what they print.
- ``nested``: calls within calls.
- ``worker``: the program of a worker, on the other side of the streams; ``task_entry`` loads it for tasks.
- ``frames``: the format of both streams; ``call_pickles``: calls as bytes; ``values``: results as bytes.
- ``main_module``: the main module of a program; ``main_names`` sends its ``script`` and names to workers,
  where ``main_worker`` runs the script and keeps the names.
- ``stored_values``: large values in blobs (``blobs``), in the caller; ``worker_data`` is the other side.
- ``call_data``: encodes calls with large arguments, references and futures; ``references``: ``dios.put``.
- ``actors``: objects in workers of their own; ``actor_calls`` is the other side.
- ``local_modules``: the packages that a worker cannot import, as ``archives``.
- ``remote_errors``: the exceptions of calls as bytes.
- ``call_options``: time limits, repetitions and needs of calls; ``shared_executors`` keeps workers warm.
- ``result_order``: ``map``; ``map_calls`` makes its calls in a worker, and ``progress`` shows their number.
- ``declared_results``: functions that say that their result cannot be sent.
- ``errors``: what calls and results can raise.
- ``results``: the closed format of results, because no worker is trusted.
- ``call_spans``: the spans of a traced call.
- ``slow_calls``: the choice of the call to make a second time.
- ``sole_references``: the question whether anything else refers to a value.
"""

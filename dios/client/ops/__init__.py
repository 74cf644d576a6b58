"""The operations, written once for both clients: generators that yield calls and receive their answers.

Read in this order:

- ``attributes``: the public part of a reference; ``handles``: the operations on objects
- ``requests``: acquire, commit and release of I/O requests
- ``nodes``: creating, looking up and running objects
- ``arrays``: the content of an object as a view, a file, an array or a table
- ``streams``, ``logs``, ``network``: streams in shared memory, logs on disk, network streams
- ``batches``: several operations in few messages
- ``cluster``, ``scheduling``, ``usage``, ``status``: nodes, schedulers, limits, and the status of tasks
- ``traced_tasks``: the calls around a traced task
- ``notebook_html``: all of these as tables of a notebook
"""

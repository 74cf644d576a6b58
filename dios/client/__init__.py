"""The client: the calls of a node as Python methods, blocking and on trio.

Read in this order:

- ``ops``: the operations on nodes and handles, written once as generators that yield calls
- ``session``: requests, replies and refusals without I/O; it runs for both clients
- ``sync``, ``trio``: the blocking client and the trio client, with the same methods and arguments
- ``buffers``, ``page``: the memory of I/O requests, and the public page of references
- ``locate``, ``keyring``: the paths of a user's node and files, and the user's names
- ``program``, ``task_main``, ``warm_up``, ``welcome``: the start of a task's process
- ``constants``: the terms of the thesis that ``dios`` exports
"""

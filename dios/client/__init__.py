"""The client: the calls of a node as Python methods, blocking and on an event loop (asyncio or trio).

Read in this order:

- ``ops``: the operations on nodes and handles, written once as generators that yield calls
- ``session``: requests, replies and refusals without I/O; it runs for both clients
- ``sync``, ``aio``: the blocking client and the async client, with the same methods and arguments
- ``buffers``, ``page``: the memory of I/O requests, and the public page of references
- ``blob_file``: a file for reading over the bytes of an object
- ``tracing``: spans of the calls of this process
- ``locate``, ``keyring``: the paths of a user's node and files, and the user's names
- ``user_keys``: the user's key, and the mandates that it signs
- ``program_node``: the rule which programs have a private node; ``private_node``: its process
- ``written_files``: errors of files that this process writes, and the sync of their folders
- ``refused_arguments``: calls that are no valid message, in the words of their callers
- ``node_socket``: connecting, and the command that starts a node which does not answer
- ``plain_text``: text of others with its control characters escaped
- ``program``, ``task_main``, ``warm_up``, ``welcome``: the start of a task's process
- ``device_variables``: the environment variables for a task's devices
- ``task_files``: inputs and outputs as files in a task
- ``wasm``: programs that are WebAssembly modules
- ``enforcement``: texts about the needs of a task that its node enforces
- ``constants``: the terms of the thesis that ``dios`` exports
- ``grants``: the texts that let another user read a group
- ``imported_tokens``: sealed tokens as files; ``border``: calls with them at the border of the user's node
"""

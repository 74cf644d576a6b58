"""The bytes of this node's objects, and how tasks get at them.

Read in this order:

- ``memories``: one anonymous memory or file of the store, with a count of its users.
- ``contents``: the current content of every object.
- ``buffers``: the open buffers of tasks, and the replies that hand bytes to them; ``received`` does the same
  for bytes that came from another node.
- ``streams``, ``consoles``, ``log_reader``: rings, what tasks print, and durable logs.
- ``public_pages``: the shared memory in which a task sees the attributes of its references.
- ``stored_bytes``: counts the durable bytes of each principal and delays those above their rate.
"""

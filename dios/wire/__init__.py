"""The messages that tasks and nodes exchange: types, framing and the strict codec. No I/O.

Read in this order:

- ``types``: the enumerations of the thesis (object types, rights, levels, flags)
- ``fields``: the types of fields, and the base class of calls
- ``calls``, ``scheduling``, ``rates``, ``admission``: the calls of a task, of a scheduler, and those that
  set rates and quotas on nodes
- ``replies``: the answers, events and records
- ``call_table``: one row with all facts about each call, from which other packages derive their tables
- ``requests``: one call or a vector of them, in the frame of a task; ``messages`` exports all messages
- ``codec``: frames, and validation of every byte that a task or node sends
- ``dcp``, ``dcp_frames``: the messages between nodes (thesis §4.8), and their frames
- ``dcp_table``: one row with all facts about each request of a node to another
- ``earlier_forms``: messages and records as earlier releases read them
- ``gossip``: the messages of the membership protocol
- ``page``: the layout of the public page, on which a task sees its references without a call
- ``addresses``: the text form of network addresses; ``origins``: servers of HTTP, and their addresses;
  ``public_addresses``: those that are no special ones
- ``border``: the calls with sealed tokens, also between clusters
- ``sealed_tokens``: rights as a text that its holders can narrow, and nobody can widen
- ``mandates``: the signed statements by which nodes act for users, and the register of users' keys
- ``node_roles``: the roles of nodes: one table of the rights of each
- ``nametext``: names as text, and their fingerprints
- ``node_labels``: the labels of a node as one text; ``environments``: the names of environments;
  ``images``: the archives of those that are images
- ``suggestions``: the advice for a mistyped word; ``schema_words``: errors of our schemas in plain words
"""

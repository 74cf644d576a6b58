"""Connections with the other nodes of a cluster, and everything that travels over them (thesis §4.8).

Each pair of nodes has one control connection for messages, and some data connections for large messages,
bytes and streams. Read in this order:

- ``connection_protocols``: the interface that a transport must offer.
- ``handshake``: the first messages of a connection.
- ``links``: keeps a control connection with every node; ``link`` is one node and its connection;
  ``liveness_probe`` finds out if a lost node's process has ended.
- ``receiving``: passes incoming messages to the core; ``incoming`` has the requests that wait for their turn;
  ``held_requests`` delays those of principals above their rate.
- ``statements``: takes over the statements of members, at a bounded rate for each signer.
- ``mandates``: signs the extensions with which other nodes act for users.
- ``shared_documents``: exchanges the register of principals and the generations of the cluster's secret.
- ``heads``: keeps the heads of other nodes' audit logs, and sends this node's.
- ``sending``: orders outgoing transfers; ``bulk`` moves their bytes in threads.
- ``effects``: carries out the core's effects about other nodes; ``interface`` is the part of it that the
  effector uses; ``remote_answers`` sends replies to tasks of other nodes.
- ``streams``: streams between nodes; ``stream_pump`` moves the bytes of one stream.
"""

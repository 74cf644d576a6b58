"""Connections between nodes: TLS 1.3 with certificates of one cluster at both ends.

``tls`` listens and connects, ``border`` does so with nodes of other clusters, ``secured`` is a connection
with frames in both directions over a ``tls_socket``, ``announce`` announces nodes on the local network.
``local_peers`` is for servers on loopback, and has no TLS.
"""

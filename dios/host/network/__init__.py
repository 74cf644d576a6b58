"""The sockets behind network streams, and the shaping of a network interface.

Read in this order:

- ``sockets``: opens, adopts and closes the socket of every network stream.
- ``addresses``: resolves host names and formats addresses.
- ``socket_pump``: moves bytes between a socket and the two rings of its stream; ``tcp`` and ``udp`` are the
  two kinds.
- ``acceptor``: a listening socket.
- ``shaping``: limits an interface to the rate of its link with the program ``tc``.
"""

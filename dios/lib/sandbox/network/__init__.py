"""The granted network of a session: HTTP(S) requests to the origins that its caller named.

The session has no sockets. Its requests go through *lanes*, pairs of streams, to a *gateway*: a second pure
task, whose right to the network is limited to these origins. Read in this order:

- ``grant``: the caller starts the gateway, and gives both tasks the ends of the lanes; ``authorities`` reads
  the certificates of the authorities that it trusts.
- ``records``: the frames on a lane. ``checked`` has the rules for a request, which the gateway enforces.
- ``gateway``: the program of the gateway; ``connections`` has its connections to servers, with TLS.
- ``sockets``: the other side, in the session: sockets that ``urllib`` and others can use; ``requests`` reads
  the requests from them.
"""

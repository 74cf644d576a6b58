"""The border of a node: the place where users of this and of trusted clusters use sealed tokens (ADR 0101).

- ``service``: listens, keeps callers to their limits, and serves or sends on each call
- ``redeemed``: a token of this cluster in a session of the node, and its files
- ``writing``: stores a file for a holder who may write
- ``pace``: the bounds of handshakes with strangers, and of slow callers
- ``connections``: the connections of programs and of foreign nodes
"""

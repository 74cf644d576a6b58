"""Packets: their descriptors, and reading and changing their headers.

Read ``packet`` first (descriptors, five-tuples, the causes for which frames are dropped), then ``parse``
(from the bytes of a frame to its descriptor) and ``rewrite`` (addresses, ports, lengths and checksums).
``fragments`` completes what has no ports, ``translate`` changes the version of IP, ``neighbours`` answers for
addresses that only a function has, and ``quic`` reads connection ids.
"""

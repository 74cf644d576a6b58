"""The Unix socket between a node and its tasks and users, with descriptors next to frames.

``client`` is the client's end for blocking callers, ``client_trio`` the same on trio, ``server`` the node's
end. ``path`` makes addresses of long paths.
"""

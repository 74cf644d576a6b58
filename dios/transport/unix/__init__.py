"""The Unix socket between a node and its tasks and users, with descriptors next to frames.

``client`` is the client's end for blocking callers, ``server`` the node's end; ``dios.client.aio.channel`` is
the client's end on an event loop. ``path`` makes addresses of long paths, ``credentials`` identifies the
peer, ``descriptors`` refuses descriptors that arrive.
"""

"""The blocking client: ``node`` has ``connect`` and the classes of handles.

``connection`` is the socket, ``handles`` the base classes, ``network`` those of streams, ``selecting`` the
``select`` over streams and other objects, ``checkpointed`` the saved state of tasks that move.
"""

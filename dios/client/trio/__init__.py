"""The trio client: ``node`` has ``open_node`` and the classes of handles.

``connection`` is the socket, ``handles`` the base classes, ``network`` and ``logs`` further handles.
"""

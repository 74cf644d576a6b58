"""The async client for asyncio and trio: ``node`` has ``open_node`` and the classes of handles.

``handles`` has the base classes, ``network`` those of streams. They call through ``connection``, which
matches answers to callers. ``channel`` is the socket. ``rings`` waits for the ends of streams.
``event_loop`` is the interface to the loop, which ``asyncio_loop`` and ``trio_loop`` implement;
``running_loop`` chooses one. ``futures`` waits for the futures of an executor.
"""

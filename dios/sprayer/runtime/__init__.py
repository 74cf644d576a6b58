"""Running network functions.

Read ``worker_kernels`` first (the loop of each core), then ``workers`` (threads, tables and statistics of all
cores), ``running`` (a function between interfaces), ``auto_steering`` (the default steering), ``loading``
(functions by name) and ``statistics_socket`` (statistics for ``dios nf stats``, of the types in
``reports``). ``progress`` counts the new bytes of TCP, and ``shared_state`` lets another host continue flows.
"""

"""SHMEM_STREAM: a ring in shared memory between two tasks, without a daemon on the data path (thesis §4.7.4).

Read ``waiting`` first: it describes the rules of the ring and exports its parts. Then ``layout`` (the
memory and its creation by the node), ``end`` (the common part of both ends), ``wakeups`` (the sockets through
which they wake each other), ``reader``, ``writer``.
``adaptive_spin`` is the short spin before a blocking wait, ``waiting_trio`` the wait on trio,
``wait_set`` the wait for many ends that were waited for before.
"""

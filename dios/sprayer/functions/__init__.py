"""Built-in network functions.

Read ``synthetic`` (the smallest), ``monitor``, ``firewall``, ``nat`` and ``balancer``; the last three share
``closing``, which detects closed connections. ``redundancy`` removes repeated payloads, with ``payloads``.
"""

"""Built-in network functions.

Read ``synthetic`` (the smallest), ``monitor``, ``firewall`` and ``balancer``; the last two share ``closing``,
which detects closed connections. ``redundancy`` removes repeated payloads, with ``payloads``. ``nat`` and
``nat64`` share ``mapping``: mappings and sessions, with the ``tcp_states`` of the latter. ``nat64`` and the
stateless ``siit`` translate between IPv6 and IPv4, with ``packets.translate``.
``dpi`` inspects payloads, with the ``automaton`` of its patterns and the ``streams`` of TCP connections.
"""

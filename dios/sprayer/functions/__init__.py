"""Built-in network functions.

Read ``synthetic`` (the smallest), ``monitor``, ``firewall``, ``nat`` and ``balancer``; the last three share
``closing``, which detects closed connections. ``redundancy`` removes repeated payloads, with ``payloads``.
``nat64``, with ``tcp_states`` of its sessions, and the stateless ``siit`` translate between IPv6 and IPv4,
with ``packets.translate``.
``dpi`` inspects payloads, with the ``automaton`` of its patterns and the ``streams`` of TCP connections.
"""

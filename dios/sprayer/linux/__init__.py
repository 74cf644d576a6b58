"""Engines for network interfaces of Linux.

Packet sockets: read ``af_packet`` (the engine), ``packet_socket`` (a socket and its ring), ``ring_kernels``
(receive, transmit, release) and ``fanout`` (steering of frames), which is written with ``bpf``.

AF_XDP sockets: read ``af_xdp`` (the engine), ``xdp_socket``, ``xdp_kernels`` and ``xdp_program`` (steering),
which is written with ``ebpf`` and loaded with ``bpf_calls``.

Both use ``engine_options`` (options and statistics), ``wait_kernels`` (waiting for frames), ``offloads``,
``frame_sizes`` and ``forwarding`` (settings of the kernel that would join, change or repeat frames).
"""

"""A multicast group on this machine's own loopback, and datagrams to it.

Not for: what is said there (``dios.transport.tcp.announce``).
"""

from __future__ import annotations

import errno
import socket

import pytest

from dios.transport.tcp.announce import MulticastNetwork


def own_group() -> MulticastNetwork:
    """A group at a port that nobody uses; skips the test where the system has no multicast on loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        network = MulticastNetwork(port=probe.getsockname()[1], interface="127.0.0.1")
    try:
        with sender(network) as sock:
            sock.sendto(b"anybody?", (network.group, network.port))
    except OSError as error:
        pytest.skip(f"no multicast on loopback: {errno.errorcode.get(error.errno or 0, error)}")
    return network


def sender(place: MulticastNetwork) -> socket.socket:
    """A stranger's socket on that network."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(place.interface))
    return sock

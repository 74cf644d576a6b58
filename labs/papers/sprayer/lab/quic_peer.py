"""An end of a QUIC connection (aioquic), as a program: a server of one connection, or its client.

It runs in a machine of the lab and prints one JSON object at its end. The client can change its address in
the middle: it then sends from another socket and receives there, as if a NAT before it had forgotten it.
"""

from __future__ import annotations

import argparse
import datetime as dt
import hashlib
import json
import secrets
import select
import socket
import ssl
import sys
import time
from typing import Final, NamedTuple

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import ConnectionTerminated, StreamDataReceived
from aioquic.quic.logger import QuicLogger
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PROTOCOL: Final = "dios-lab"
WINDOW: Final = 16 << 20
LIMIT_S: Final = 60.0
_DATAGRAMS: Final = 64
"""The most datagrams that are received before answers are sent."""
_ID_BYTES: Final = 8


class PeerOrder(NamedTuple):
    """The order of packets behind the handshake."""

    packets: int
    late: int
    """Those that were received after a packet with a higher number."""
    late_by_three: int
    """Those received after three packets with higher numbers: a sender takes them for lost."""
    lost: int
    """Those that this end sent and took for lost."""


class Peer:
    """A connection and its socket."""

    def __init__(self, connection: QuicConnection, sock: socket.socket) -> None:
        self.connection: Final = connection
        self.sockets = [sock]
        """The present socket, and those of former addresses."""
        self.received = bytearray()
        self.finished = self.terminated = False
        self.sent = 0

    def step(self) -> None:
        """Send what is due, wait for datagrams or the timer, and process them."""
        for data, address in self.connection.datagrams_to_send(time.monotonic()):
            self.sockets[0].sendto(data, address)
            self.sent += 1
        due = self.connection.get_timer()
        wait = 0.2 if due is None else min(max(due - time.monotonic(), 0), 0.2)
        for sock in select.select(self.sockets[:1], [], [], wait)[0]:
            for _ in range(_DATAGRAMS):
                try:
                    data, address = sock.recvfrom(65_536)
                except BlockingIOError:
                    break
                self.connection.receive_datagram(data, address, time.monotonic())
        if due is not None and due <= time.monotonic():
            self.connection.handle_timer(time.monotonic())
        while (event := self.connection.next_event()) is not None:
            if isinstance(event, StreamDataReceived):
                self.received += event.data
                self.finished |= event.end_stream
            elif isinstance(event, ConnectionTerminated):
                self.terminated = True

    def move(self) -> None:
        """Continue from another port."""
        self.sockets.insert(0, bound(self.sockets[0].getsockname()[0], 0))


def bound(address: str, port: int) -> socket.socket:
    """Return a socket that does not block."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    sock.bind((address, port))
    sock.setblocking(False)
    return sock


def order_of(log: QuicLogger) -> PeerOrder:
    """Return the order of the packets that a log has."""
    numbers: list[int] = []
    lost = 0
    for trace in log.to_dict()["traces"]:
        for event in trace["events"]:
            if event["name"] == "recovery:packet_lost":
                lost += 1
            if (
                event["name"] == "transport:packet_received"
                and event["data"]["header"]["packet_type"] == "1RTT"
            ):
                numbers.append(int(event["data"]["header"]["packet_number"]))
    late = late_by_three = 0
    highest: list[int] = []
    for number in numbers:
        late += bool(highest) and number < highest[0]
        late_by_three += len(highest) == 3 and number < highest[2]
        highest = sorted({*highest, number}, reverse=True)[:3]
    return PeerOrder(len(numbers), late, late_by_three, lost)


def configuration(*, client: bool) -> QuicConfiguration:
    """Return the configuration of an end; the server's certificate is made here, and nobody verifies it."""
    config = QuicConfiguration(
        is_client=client,
        alpn_protocols=[PROTOCOL],
        max_data=WINDOW,
        max_stream_data=WINDOW,
        quic_logger=QuicLogger(),
        connection_id_length=_ID_BYTES,
    )
    if client:
        config.verify_mode = ssl.CERT_NONE
        return config
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, PROTOCOL)])
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - dt.timedelta(days=1))
    config.certificate = builder.not_valid_after(now + dt.timedelta(days=1)).sign(key, hashes.SHA256())
    config.private_key = key
    return config


def serve(address: str, port: int) -> dict[str, object]:
    """Accept one connection, receive its stream, answer with its digest, and report."""
    sock = bound(address, port)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    end = time.monotonic() + LIMIT_S
    while not select.select([sock], [], [], 0.2)[0]:
        if time.monotonic() > end:
            return {"error": "no client came"}
    data, client = sock.recvfrom(65_536)
    settings = configuration(client=False)
    # A long header: its first byte, the version, and the length of the id that the client chose.
    chosen = data[6 : 6 + data[5]]
    connection = QuicConnection(configuration=settings, original_destination_connection_id=chosen)
    peer = Peer(connection, sock)
    connection.receive_datagram(data, client, time.monotonic())
    begun, took, answered = time.monotonic(), 0.0, False
    while not peer.terminated and time.monotonic() < end:
        peer.step()
        if peer.finished and not answered:
            took, answered = time.monotonic() - begun, True
            connection.send_stream_data(0, hashlib.sha256(peer.received).digest(), end_stream=True)
    log = settings.quic_logger
    order = order_of(log) if log else PeerOrder(0, 0, 0, 0)
    return {"bytes": len(peer.received), "seconds": took, **order._asdict()}


def send(source: str, address: str, port: int, size: int, moves: int) -> dict[str, object]:
    """Send a stream, moving ``moves`` times meanwhile; report if the server received all of it."""
    settings = configuration(client=True)
    connection = QuicConnection(configuration=settings)
    peer = Peer(connection, bound(source, 0))
    connection.connect((address, port), time.monotonic())
    text = secrets.token_bytes(size)
    stream = connection.get_next_available_stream_id()
    connection.send_stream_data(stream, text, end_stream=True)
    end = time.monotonic() + LIMIT_S
    every, moved = size // 1200 // (moves + 1), 0
    while not peer.finished and not peer.terminated and time.monotonic() < end:
        peer.step()
        if moved < moves and peer.sent > (moved + 1) * every:
            peer.move()
            moved += 1
    whole = bytes(peer.received) == hashlib.sha256(text).digest()
    connection.close()
    while not peer.terminated and time.monotonic() < end:
        peer.step()
    log = settings.quic_logger
    order = order_of(log) if log else PeerOrder(0, 0, 0, 0)
    return {"whole": whole, "moved": moved, "sent": peer.sent, **order._asdict()}


def main() -> None:
    """Parse the command line and run an end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("end", choices=["serve", "send"])
    parser.add_argument("address")
    parser.add_argument("port", type=int)
    parser.add_argument("--source", default="")
    parser.add_argument("--bytes", type=int, default=1 << 20)
    parser.add_argument("--moves", type=int, default=0)
    args = parser.parse_args()
    if args.end == "serve":
        told = serve(args.address, args.port)
    else:
        told = send(args.source, args.address, args.port, args.bytes, args.moves)
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    main()

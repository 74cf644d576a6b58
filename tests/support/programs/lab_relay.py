"""A switch between the lab's machines that is slow and loses frames: ``python lab_relay.py SEED PORTS``.

Not for: machines that are cut off from each other (``lab_network`` does that, at the sender), or for speed:
a good network is the kernel's bridge. It stands in for the kernel's network emulation, which many
kernels are built without, and does the same on every machine.

The devices are named ``p0``, ``p1`` …; the last byte of an address of the lab is the number of the device
behind which it stands. A line ``DELAY_MS LOSS_PERCENT`` on the standard input changes what is done to frames
that come from then on. Frames of one delay stay in order. It ends with its standard input.
"""

from __future__ import annotations

import heapq
import random
import selectors
import socket
import sys
import time
from typing import Final

SOL_PACKET: Final = 263
PACKET_VNET_HDR: Final = 15
PACKET_IGNORE_OUTGOING: Final = 23
SO_RCVBUFFORCE: Final = 33
ETH_P_ALL: Final = 3
BUFFER_BYTES: Final = 8 << 20
FRAME_BYTES_MAX: Final = 1 << 17
HEADER_BYTES: Final = 10
"""What the kernel says of a frame's checksum and segments; it goes out with the frame as it came in."""
GROUP_BIT: Final = 1
BURST: Final = 64


class Relay:
    """Takes frames from every device, and lets go of them later, or never."""

    def __init__(self, seed: int, count: int) -> None:
        self._chance: Final = random.Random(seed)  # noqa: S311 - which frames are lost shall be repeatable
        self._ports: Final = [_opened(f"p{number}") for number in range(count)]
        self._late: Final[list[tuple[int, int, int, bytes]]] = []
        self._number = 0
        self._delay_ns = 0
        self._loss = 0.0

    def run(self) -> None:
        """Serve until the standard input ends."""
        with selectors.DefaultSelector() as ready:
            for number, opened in enumerate(self._ports):
                ready.register(opened, selectors.EVENT_READ, number)
            ready.register(sys.stdin, selectors.EVENT_READ, -1)
            while True:
                for key, _ in ready.select(self._wait()):
                    port: int = key.data
                    if port >= 0:
                        self._take(port)
                    elif not self._told(sys.stdin.readline()):
                        return
                self._let_go()

    def _told(self, line: str) -> bool:
        if line:
            delay_ms, loss_percent = line.split()
            self._delay_ns = int(float(delay_ms) * 1e6)
            self._loss = float(loss_percent) / 100
            sys.stdout.write("set\n")
            sys.stdout.flush()
        return bool(line)

    def _wait(self) -> float | None:
        return max(0, self._late[0][0] - time.monotonic_ns()) / 1e9 if self._late else None

    def _take(self, port: int) -> None:
        for _ in range(BURST):
            try:
                frame = self._ports[port].recv(FRAME_BYTES_MAX)
            except OSError:
                return
            if len(frame) < HEADER_BYTES + 6:
                continue
            due = time.monotonic_ns() + self._delay_ns
            target, group = frame[HEADER_BYTES + 5], frame[HEADER_BYTES] & GROUP_BIT
            for other in range(len(self._ports)):
                # Each copy of what is meant for all is lost for itself, as on its own cable.
                if other != port and (group or other == target) and self._chance.random() >= self._loss:
                    self._number += 1
                    heapq.heappush(self._late, (due, self._number, other, frame))

    def _let_go(self) -> None:
        now = time.monotonic_ns()
        while self._late and self._late[0][0] <= now:
            _, _, port, frame = heapq.heappop(self._late)
            try:
                self._ports[port].send(frame)
            except OSError:
                # A device that is full or gone loses frames, like any switch's.
                continue


def _opened(device: str) -> socket.socket:
    """A socket that has every frame of a device, with what the kernel has left undone of it."""
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
    port.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    port.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    port.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
    port.bind((device, ETH_P_ALL))
    return port


if __name__ == "__main__":
    relay = Relay(int(sys.argv[1]), int(sys.argv[2]))
    sys.stdout.write("set\n")
    sys.stdout.flush()
    relay.run()

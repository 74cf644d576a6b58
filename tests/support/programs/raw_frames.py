"""Sends frames as they are, or says which came: one end of a cable, for the lab.

Run as a program in a namespace. Not for: making frames (``steer_frames``). Lines of hexadecimal digits, one
for each frame, go in or come out.
"""

from __future__ import annotations

import socket
import struct
import sys
from typing import Final

_SOL_PACKET: Final = 263
_AUXDATA: Final = 8
_IGNORE_OUTGOING: Final = 23
_ALL: Final = 0x0003
WAIT_SECONDS: Final = 10.0


def main() -> None:
    """``send INTERFACE`` or ``take INTERFACE COUNT``."""
    doing, name = sys.argv[1:3]
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as end:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
        if doing == "send":
            end.bind((name, 0))
            for line in sys.stdin:
                end.send(bytes.fromhex(line))
            return
        end.setsockopt(_SOL_PACKET, _AUXDATA, 1)
        end.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
        end.settimeout(WAIT_SECONDS)
        end.bind((name, _ALL))
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        count = int(sys.argv[3])
        while count:
            frame = _whole(end)
            # What the machines say on their own is no part of a test: they have other addresses.
            if frame[:6] == b"\2\0\0\0\0\2":
                sys.stdout.write(frame.hex() + "\n")
                count -= 1


def _whole(end: socket.socket) -> bytes:
    """A frame, with the tag that the kernel took out of it."""
    frame, beside, _, _ = end.recvmsg(1 << 16, 256)
    for level, kind, data in beside:
        if (level, kind) == (_SOL_PACKET, _AUXDATA):
            status, _, _, _, _, tag, protocol = struct.unpack("=IIIHHHH", data[:20])
            if status & 1 << 4:
                name = protocol if status & 1 << 6 else 0x8100
                return frame[:12] + struct.pack("!HH", name, tag) + frame[12:]
    return frame


if __name__ == "__main__":
    main()

"""The least that a node could be, started by ``lab_echo``: ``python lab_echo_node.py ADDRESS SOCKET``.

Not for: tests of the product. It answers peers with what they sent. A client of the Unix socket types
``PEER SECONDS`` and is told ``ok``, the nanoseconds of a round trip and what time it is here, or why not.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from pathlib import Path
from typing import Final

PORT: Final = 7000
MESSAGE: Final = b"echo this"


def _serve(listener: socket.socket) -> None:
    while True:
        peer, _ = listener.accept()
        threading.Thread(target=_echo, args=(peer,), daemon=True).start()


def _echo(peer: socket.socket) -> None:
    with peer:
        try:
            while data := peer.recv(4096):
                peer.sendall(data)
        except OSError:
            return


def _tell(client: socket.socket) -> None:
    with client, client.makefile() as lines:
        for line in lines:
            address, seconds = line.split()
            began = time.monotonic_ns()
            try:
                with socket.create_connection((address, PORT), float(seconds)) as peer:
                    peer.sendall(MESSAGE)
                    answer = peer.recv(4096)
            except OSError as error:
                client.sendall(f"{type(error).__name__}: {error}\n".encode())
                continue
            assert answer == MESSAGE
            client.sendall(f"ok {time.monotonic_ns() - began} {time.time_ns()}\n".encode())


def main(address: str, path: str) -> None:
    """Serve on an address and a Unix socket until killed."""
    peers = socket.create_server((address, PORT))
    threading.Thread(target=_serve, args=(peers,), daemon=True).start()
    Path(path).unlink(missing_ok=True)
    people = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    people.bind(path)
    people.listen()
    while True:
        client, _ = people.accept()
        threading.Thread(target=_tell, args=(client,), daemon=True).start()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

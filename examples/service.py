"""A replica of a supervised service: a web server that says which replica answers.

With a cluster: dios service create examples/service.py --name hello --replicas 3 --network
"""

from __future__ import annotations

import dios

ANSWER = "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}"


def main() -> None:
    """Print the address, and answer each connection with the address of this replica."""
    node = dios.connect()
    with node.listen_tcp("127.0.0.1:0") as acceptor:
        text = f"hello from {acceptor.address}\n"
        print(acceptor.address, flush=True)
        for connection in acceptor:
            with connection:
                connection.receive()
                connection.send(ANSWER.format(len(text), text).encode())


if __name__ == "__main__":
    main()

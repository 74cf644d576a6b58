r"""A load balancer in front of a DIOS service: it follows the tasks that accept connections.

Workers run ``open_service(node, group, name).listen("10.1.0.2:0")``; see docs/libraries.md. Then put the
service's name into the environment (the arguments of a process are visible to everyone) and its group into
your keyring::

    DIOS_SERVICE=NAME dios nf run examples/sprayer/balance.py --in eth0 --out eth1 \
        --set address=192.0.2.9 --set port=80 --set inner=10.1.0.254
"""

from __future__ import annotations

import os

import dios
from dios.lib.services import Followed
from dios.sprayer.functions.balancer import Balancer


class Balance(Balancer):
    """A balancer from an address and port to the members of the service, with the inner address ``inner``."""

    def __init__(self, address: str, port: int, inner: str) -> None:
        followed = Followed(dios.connect, os.environ["DIOS_SERVICE"])
        super().__init__((address, port), followed.places, inner)


def main() -> None:
    """Print the current members of the service."""
    followed = Followed(dios.connect, os.environ["DIOS_SERVICE"])
    for host, port in followed.places():
        print(f"{host}:{port}")
    followed.close()


if __name__ == "__main__":
    main()

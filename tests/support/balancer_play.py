"""A balancer in front of a service of DIOS, for the lab: runs until it is told to end, then says what it did.

Not for: people. Run as a program inside the namespace of the function.
"""

from __future__ import annotations

import json
import os
import sys

import dios
from dios.lib.services import open_service
from dios.sprayer.functions.balancer import Balancer
from dios.sprayer.running import run


def main() -> None:
    """Say ``ready``, balance, and say what all cores did."""
    socket, group, name, service, port, inner = sys.argv[1:]
    with dios.connect(socket, groups=[group]) as node:
        places = open_service(node, None, name).places
        balancer = Balancer((service, int(port)), places, inner)
        told = run(balancer, "in0", "out0", cores=2, name=f"lab{os.getpid()}", ready=_ready)
    sys.stdout.write(json.dumps({"dropped": told["dropped"], "counters": told["counters"]}))


def _ready(_name: str) -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

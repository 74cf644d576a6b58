"""A member that is a real node with true state, whose messages to the others are bent (``turncoat_node``).

Users work on it and with it meanwhile, so that lies come at every depth of every conversation.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Final

import trio

from dios.errors import DiosError, NotPermittedError, UnreachableError
from dios.node import seeds
from dios.node.daemon import command
from dios.transport.identity.identity import Identity, load
from dios.transport.tcp.tls import dial
from tests.support.security.hostile_member.bait import Bait
from tests.support.security.hostile_member.campaign import FoundError, Played, reasons
from tests.support.security.hostile_member.honest_nodes import SETTINGS, SETTLED_S, HonestNodes, until

ROOT: Final = Path(__file__).parents[4]
PROGRAM: Final = ROOT / "tests" / "support" / "programs" / "turncoat_node.py"
SHARE: Final = 0.04
ENDED_S: Final = 20.0


def free_address() -> str:
    """Return an address that nobody uses at this moment."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"127.0.0.1:{probe.getsockname()[1]}"


@contextlib.contextmanager
def running_turncoat(me: Identity, data: Path, nodes: HonestNodes, seed: int) -> Iterator[Path]:
    """Start the node; yield the socket for its users."""
    seeds.write(data, [node.address for node in nodes.nodes])
    flags = {**SETTINGS, "name": me.name, "listen": free_address(), "socket": str(data / "node.sock")}
    ready, far = os.pipe()
    arguments = command(data, config=None, flags=flags, ready=far)
    daemon = [sys.executable, str(PROGRAM), str(seed), str(SHARE), *arguments[arguments.index(str(data)) :]]
    with (data / "turncoat.log").open("wb") as log:
        process = subprocess.Popen(
            daemon,
            pass_fds=(far,),
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    os.close(far)
    try:
        with os.fdopen(ready, "rb") as pipe:
            said = pipe.readline()
            assert said == b"ready\n", said.decode() + (data / "turncoat.log").read_text()
        yield data / "node.sock"
    finally:
        process.kill()
        process.wait(ENDED_S)


def play_turncoat(nodes: HonestNodes, seed: int, calls: int, folder: Path) -> Played:
    """Let users work with a turncoat, ``calls`` calls each; raise FoundError if others are harmed."""
    name = f"turncoat-{seed}"
    data = folder / name
    rng = Random(seed)  # noqa: S311 - repeatable, nothing secret
    me = trio.run(nodes.admit, data, name, seed % 3)
    try:
        with running_turncoat(me, data, nodes, seed) as place, contextlib.ExitStack() as stack:
            victim = rng.choice(nodes.nodes)
            until(lambda: name in nodes.names_at(victim.name), "the turncoat is connected")
            to = Bait(victim.socket, name, Random(seed + 1))  # noqa: S311 - the same
            stack.callback(to.close)
            back = Bait(place, victim.name, Random(seed + 2))  # noqa: S311 - the same
            stack.callback(back.close)
            for _ in range(calls):
                to.turn()
                # Its own calls fail as its peers refuse it; that is its trouble.
                with contextlib.suppress(DiosError, AssertionError, OSError):
                    back.turn()
            nodes.is_intact()
            nodes.forget(me, (seed + 1) % 3)
        for node in nodes.nodes:
            assert trio.run(_is_refused, data, node.address), f"{node.name} still serves the turncoat"
        nodes.is_intact()
    except Exception as error:
        raise FoundError(
            seed, "turncoat", f"turncoat, seed {seed}, {calls} calls: {reasons(error)}"
        ) from error
    finally:
        shutil.rmtree(data, ignore_errors=True)
    return Played("turncoat", 2 * calls)  # its lies are counted by nobody


async def _is_refused(data: Path, address: str) -> bool:
    """Return True if a node refuses the turncoat, and False if it accepts it.

    A busy machine may need longer than the time for a connection, which says neither: it is asked again.
    """
    me = load(data)
    assert me is not None
    deadline = trio.current_time() + SETTLED_S
    while True:
        async with trio.open_nursery() as nursery:
            try:
                (await dial(address, me, nursery)).close()
            except NotPermittedError:
                return True
            except UnreachableError:
                if trio.current_time() > deadline:
                    raise
            else:
                return False
        await trio.sleep(0.1)

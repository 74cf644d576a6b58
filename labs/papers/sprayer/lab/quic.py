"""A real QUIC connection (aioquic) through a network function, between two machines in namespaces.

Its packets have encrypted numbers, so the ends themselves report their order.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, TypedDict, cast

from dios.sprayer.functions.balancer import Balancer
from dios.sprayer.functions.synthetic import Synthetic
from dios.sprayer.network_function import NetworkFunction
from dios.sprayer.runtime.workers import Workers
from labs.papers.sprayer.lab.measure import MeasurementSetting
from labs.papers.sprayer.lab.namespaces import MachineNamespaces, NotHereError, killed_with_parent
from labs.papers.sprayer.lab.veth_pairs import CABLE, LEFT, LEFT_LINK, RIGHT, RIGHT_LINK, VethPairs

PORT: Final = 443
SERVICE: Final = ("10.214.0.9", PORT)
INNER: Final = "10.214.0.8"
LIMIT_S: Final = 90
_PEER: Final = Path(__file__).with_name("quic_peer.py")


class QuicTransfer(NamedTuple):
    """A stream from left to right."""

    bits_s: float
    whole: bool
    """The server received what the client sent."""
    late: float
    """The fraction of packets that arrived after a later one."""
    late_by_three: float
    """The fraction that arrived after three later ones."""
    lost: float
    """The fraction of sent datagrams whose packets the sender took for lost."""
    moved: int
    """The number of changes of the client's port."""
    counters: dict[str, int]
    """The counters of the function."""
    regular: int
    """Packets that were processed where they arrived."""


class _Served(TypedDict):
    bytes: int
    seconds: float
    packets: int
    late: int
    late_by_three: int


class _Sent(TypedDict):
    whole: bool
    moved: int
    sent: int
    lost: int


def missing() -> str:
    """Return a message with the command that installs what is missing, or an empty text."""
    lacks = [name for name in ("aioquic", "cryptography") if importlib.util.find_spec(name) is None]
    return f"{', '.join(lacks)} is not installed: pip install {' '.join(lacks)}" if lacks else ""


def through_synthetic(
    veth_pairs: VethPairs, cycles: int, setting: MeasurementSetting, size: int
) -> QuicTransfer:
    """Send ``size`` bytes on one connection through the thesis' function, with ``cycles`` for each packet."""
    return _transfer(veth_pairs, Synthetic(cycles, quic_ports=[PORT]), setting, RIGHT, size, 0)


def through_balancer(
    veth_pairs: VethPairs, setting: MeasurementSetting, size: int, moves: int
) -> QuicTransfer:
    """Send ``size`` bytes to a balanced service while the client's port changes ``moves`` times.

    Two servers are listed, and one of them does not exist: a connection that changes its server does not go
    on. The first packet goes to the server that exists.
    """
    nowhere = "10.214.0.77"
    # The balancer answers for its addresses only after a first frame of the other side.
    veth_pairs.left.batch([f"neigh replace {SERVICE[0]} lladdr {RIGHT_LINK.hex(':')} dev {CABLE}"])
    veth_pairs.right.batch([f"neigh replace {INNER} lladdr {LEFT_LINK.hex(':')} dev {CABLE}"])
    function = Balancer(SERVICE, [(nowhere, PORT), (RIGHT, PORT)], INNER, quic_ports=[PORT])
    return _transfer(veth_pairs, function, setting, SERVICE[0], size, moves)


def _transfer(
    veth_pairs: VethPairs,
    function: NetworkFunction,
    setting: MeasurementSetting,
    target: str,
    size: int,
    moves: int,
) -> QuicTransfer:
    opening = veth_pairs.engine(
        setting.cores,
        setting.steer,
        secret=setting.seed,
        how=setting.how,
        quic_ports=function.quic_ports,
    )
    with opening as engine:
        workers = Workers(function, engine, seed=setting.seed)
        workers.turn(0, 0)
        with workers, _peer(veth_pairs.right, ["serve", RIGHT, str(PORT)]) as server:
            if server.stdout is None or server.stdout.readline().strip() != "ready":
                raise NotHereError(
                    f"the QUIC server does not start: {server.communicate()[1].strip()[-300:]}"
                )
            workers.use_realtime_priority()
            words = ["send", target, str(PORT), "--source", LEFT, "--bytes", str(size), "--moves", str(moves)]
            with _peer(veth_pairs.left, words) as client:
                sent = cast("_Sent", _report(client))
            served = cast("_Served", _report(server))
            counts = workers.statistics().counts
    packets = max(served["packets"], 1)
    return QuicTransfer(
        bits_s=8 * served["bytes"] / served["seconds"] if served["seconds"] else 0.0,
        whole=sent["whole"],
        late=served["late"] / packets,
        late_by_three=served["late_by_three"] / packets,
        lost=sent["lost"] / max(sent["sent"], 1),
        moved=sent["moved"],
        counters=function.totals(),
        regular=counts["regular_packets"],
    )


@contextlib.contextmanager
def _peer(space: MachineNamespaces, words: list[str]) -> Iterator[subprocess.Popen[str]]:
    command = killed_with_parent(space.inside(sys.executable, str(_PEER), *words))
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _report(process: subprocess.Popen[str]) -> object:
    """Return what an end of the connection printed."""
    try:
        said, errors = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        raise NotHereError(f"the QUIC connection did not end within {LIMIT_S} s") from None
    try:
        report: dict[str, object] = json.loads(said)
    except ValueError:
        raise NotHereError(f"an end of the QUIC connection failed: {errors.strip()[-300:]}") from None
    if "error" in report:
        raise NotHereError(f"an end of the QUIC connection failed: {report['error']}")
    return report

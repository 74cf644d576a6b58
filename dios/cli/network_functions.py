"""``dios nf``: network functions on all cores of this machine.

``dios.sprayer`` needs the extra ``cluster`` and is loaded only inside the commands.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from dios.cli.common.application import CommandApplication
from dios.cli.common.extras import needing_extra
from dios.cli.common.options import argument, option
from dios.cli.common.output import (
    Number,
    say,
    table_of,
    transfer,
    waiting,
    write_facts,
    write_json,
    write_json_line,
)
from dios.cli.common.results import OutputOptions
from dios.errors import InvalidError, UnreachableError
from dios.limits import MIB

if TYPE_CHECKING:
    from dios.sprayer.runtime.shared_state import SharedState
    from dios.sprayer.runtime.statistics_socket import JsonObject

WHAT: Final = "network functions"
WATCH_S: Final = 1.0
STORE: Final = "DIOS_NF_STORE"
SMALL: Final = 8 * MIB
_CLEAR: Final = "\x1b[H\x1b[2J"

app: Final = CommandApplication(
    help="Network functions on all cores of this machine, even for one flow.",
    no_args_is_help=True,
)

FUNCTION: Final = (
    "A file with a subclass of dios.sprayer.NetworkFunction (nat.py, or nat.py:Name), or a built-in one: "
    "nat, firewall, balancer, monitor, redundancy, dpi, nat64, siit, synthetic."
)
READY: Final = (
    "  nat         addresses, ports, flows_max, quic_ports, filtering, sessions_max, mtu\n"
    "  firewall    rules, flows_max, quic_ports\n"
    "  balancer    service, servers, inner, flows_max, quic_ports\n"
    "  monitor     flows_max\n"
    "  redundancy  role, key, remembered\n"
    "  dpi         patterns, window, rings, flows_max\n"
    "  nat64       addresses, prefix, ports, mtu, flows_max, filtering, sessions_max\n"
    "  siit        address, prefix, mtu\n"
    "  synthetic   cycles_each, flows_max, quic_ports\n"
)
_RUN: Final = (
    "\b\nExamples:\n"
    "  dios nf run nat.py --in eth0 --out eth1     (as root)\n"
    "  dios nf run nat --set addresses=192.0.2.1 --in eth0 --out eth1 --cores 4\n"
    "  dios nf run monitor --in eth0 --out eth1 --steer rss --json > seen.json\n"
    "\f"
    "  dios nf run firewall --in eth0 --out eth1 \\\n"
    "    --set 'rules=[{ target = \"192.0.2.0/24\", protocol = 6, ports = [443, 443] }]'\n"
    '  dios nf run dpi --in eth0 --out eth1 --set \'patterns=[{ name = "x", text = "/etc/passwd", '
    'action = "drop" }]\'\n'
    f"\b\nSettings of the built-in functions (--set):\n{READY}"
    "\b\nThe interfaces forward frames to each other like a bridge, so they should have no addresses."
)

_DETAILS: Final = "Fine tuning"

FUNCTION_ARGUMENT: Final[str] = argument("FUNCTION", FUNCTION)


SET_OPTION: Final[list[str] | None] = option(
    "--set KEY=VALUE", "A setting of the function; values as in TOML.", section=_DETAILS
)


@app.command(epilog=_RUN, json="dios.sprayer.runtime.reports:RunningReport")
def run(
    function: str = FUNCTION_ARGUMENT,
    *,
    inside: list[str] = option(
        "--in DEV", "The inside interface; several form pairs with --out.", required=True
    ),
    outside: list[str] = option("--out DEV", "The outside interface.", required=True),
    cores: int | None = option("--cores N", "Number of workers; default: one per processor.", min=1),
    steer: str = option(
        "--steer HOW",
        "The core of a TCP packet: auto (rss, or spray or flowlet where they carry more), "
        "spray (any core), direct (any core, but packets that open or close a "
        "connection go to its designated core), rss (one core per flow), flowlet (one core for some "
        "milliseconds), subset:K (K cores per flow).",
        default="auto",
    ),
    places: int | None = option(
        "--places N", "Frame buffers per core and interface; default 2048.", section=_DETAILS
    ),
    engine: str = option(
        "--engine KIND",
        "Source of frames: af_packet, or af_xdp, which needs interfaces that no other program uses.",
        default="af_packet",
        section=_DETAILS,
    ),
    realtime: bool = option(
        "--realtime", "Give workers real-time priority: fewer packets overtake each other.", section=_DETAILS
    ),
    name: str = option("--name", "Name in `dios nf stats`; default: the interfaces."),
    share_as: str = option(
        "--share-as HOST",
        "Take turns with other hosts: this host's name. DIOS_NF_STORE has the store's name.",
        section=_DETAILS,
    ),
    settings: list[str] | None = SET_OPTION,
    output: OutputOptions,
) -> None:
    """Run a network function between two interfaces until Ctrl-C, then show what each core did.

    Frames that arrive at one interface leave at the other, unless the function drops them. A connection's
    opening and closing packets (SYN, FIN, RST) go to its designated core. With --steer auto, the other TCP
    packets go there too until that core is full while others are idle; then any core may process them. The
    first run of a function compiles
    it, which takes some seconds. Offloads of the interfaces are switched off during the run and restored
    afterwards.
    """
    with needing_extra("cluster", WHAT):
        from dios.limits import SPRAYER_PLACES  # noqa: PLC0415 - beside the others
        from dios.sprayer.runtime.loading import load, settings_of  # noqa: PLC0415 - needs an extra
        from dios.sprayer.runtime.running import run as run_function  # noqa: PLC0415 - needs an extra
    with contextlib.ExitStack() as stack:
        stack.enter_context(waiting("compiling"))

        def ready(name: str) -> None:
            stack.close()
            say(
                f"dios nf run: {function} runs between {', '.join(inside)} and {', '.join(outside)}; "
                f"`dios nf stats {name}` shows what it does, Ctrl-C ends it"
            )

        loaded = load(function, settings_of(settings or []))
        stack.enter_context(_within_bounds())
        if share_as:
            say(f"dios nf run: {share_as} waits until no other host runs {function}")
        told = run_function(
            loaded,
            inside,
            outside,
            cores=cores,
            steer=steer,
            places=places or SPRAYER_PLACES,
            engine=engine,
            realtime=realtime,
            name=name,
            shared=_shared_state(share_as) if share_as else None,
            ready=ready,
        )
    write_json(told) if output.as_json else show(told)


def _shared_state(host: str) -> SharedState:
    """Open the store that hosts share, whose name is in the environment because it is a secret."""
    from dios.client.ops.nodes import name_bytes  # noqa: PLC0415 - only for shared functions
    from dios.client.sync.node import connect  # noqa: PLC0415 - likewise
    from dios.lib.keyvalue import open_store  # noqa: PLC0415 - likewise
    from dios.sprayer.runtime.shared_state import SharedState  # noqa: PLC0415 - needs an extra

    name = os.environ.get(STORE, "")
    if not name:
        raise InvalidError(f"--share-as {host}: {STORE} has no name of a key-value store (docs/sprayer.md)")
    node = connect(start=False)
    for group in node.groups:
        with contextlib.suppress(UnreachableError):
            return SharedState(open_store(node, group, name_bytes(name)), host)
    raise UnreachableError(
        f"--share-as {host}: none of your groups has the store of {STORE}, or its nodes do not answer"
    )


@app.command(
    examples="dios nf stats\ndios nf stats --watch\ndios nf stats eth0-eth1 --json | jq .jain",
    json="dios.sprayer.runtime.reports:RunningReport",
    note="With --watch each line is such a document.",
)
def stats(
    name: str | None = argument("FUNCTION", "The function; not needed if only one runs.", default=None),
    *,
    watch: bool = option("-w --watch", "Refresh every second, until Ctrl-C."),
    output: OutputOptions,
) -> None:
    """Show what the cores of a running network function did since its start.

    PACKETS were processed by a core; DROPPED counts all causes, listed below; QUEUE are packets that wait for
    the core now, at interfaces or handed over; DEEPEST is the maximum of handed-over packets that waited;
    GIVEN and TAKEN were handed to other cores and received from them; FLOWS are in its table. Jain's index is
    1 if all cores have equal work, and 1/N if one core has all. --watch --json prints lines.
    """
    with needing_extra("cluster", WHAT):
        from dios.sprayer.runtime.statistics_socket import read_statistics  # noqa: PLC0415 - needs an extra
    chosen = name or _only()
    if not watch:
        told = read_statistics(chosen)
        write_json(told) if output.as_json else show(told)
        return
    before: JsonObject = {}
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            told = read_statistics(chosen)
            if output.as_json:
                write_json_line(told)
            else:
                if sys.stdout.isatty():
                    sys.stdout.write(_CLEAR)
                show(told, before)
                sys.stdout.flush()
            before = told
            time.sleep(WATCH_S)


@app.command(
    examples="dios nf replay in.pcap out.pcap nat.py\n"
    "dios nf replay in.pcap out.pcap nat --set addresses=192.0.2.1 --inside 10.0.0.0/8\n"
    "dios nf replay in.pcap out.pcap monitor --cores 4 --json | jq .dropped",
    json="dios.sprayer.runtime.reports:ReplayReport",
)
def replay(
    source: Path = argument("IN.pcap", "Packets to read."),
    target: Path = argument("OUT.pcap", "File for the resulting packets."),
    function: str = FUNCTION_ARGUMENT,
    *,
    cores: int = option("--cores N", "Number of workers, which get packets in turn.", default=1, min=1),
    inside: list[str] | None = option(
        "--inside NETWORK",
        "Packets from this network are from inside, others from outside; default: all from inside.",
    ),
    settings: list[str] | None = SET_OPTION,
    output: OutputOptions,
) -> None:
    """Send the packets of a file through a network function, without root and without interfaces.

    The function sees the times in the file, and the result is the same each time. Files are classic pcap of
    Ethernet, as written by tcpdump -w.
    """
    with needing_extra("cluster", WHAT):
        from dios.sprayer.pcap import replay as replay_file  # noqa: PLC0415 - needs an extra
        from dios.sprayer.runtime.loading import load, settings_of  # noqa: PLC0415 - needs an extra
        from dios.sprayer.runtime.running import summary  # noqa: PLC0415 - needs an extra
    loaded = load(function, settings_of(settings or []))
    side = _side(inside) if inside else None
    try:
        size = source.stat().st_size
    except OSError:
        size = 0
    # A small file takes little time, but its function may have to be compiled.
    quiet = waiting(f"{source.name} through {function}") if size < SMALL else contextlib.nullcontext()
    with quiet, _within_bounds(), transfer(source.name, size) as move:
        done = 0

        def progress(now: int) -> None:
            nonlocal done
            move(now - done)
            done = now

        statistics = replay_file(source, target, loaded, cores=cores, side=side, progress=progress)
    told = summary(statistics, loaded)
    counts = told["counts"]
    output.print_row(
        told,
        facts={
            "packets": f"{counts['received']} from {source}",
            "sent": f"{counts['sent']} to {target}",
            "flows": str(told["flows"]["held"]),
            **_below(told),
        },
    )
    if not output.as_json:
        _show_alerts(told)


@contextlib.contextmanager
def _within_bounds() -> Iterator[None]:
    """Turn errors about a function's bounds (cores, flows, entries) into InvalidError."""
    try:
        yield
    except (ValueError, MemoryError) as error:
        raise InvalidError(str(error)) from error


def show(told: JsonObject, before: JsonObject | None = None) -> None:
    """Show a function's work per core; with its earlier counts, also packets per second."""
    cores = cast("list[dict[str, int]]", told["cores"])
    span = float(cast("float", told["seconds"]))
    earlier = cast("list[dict[str, int]]", before["cores"]) if before else []
    since = max(span - float(cast("float", before["seconds"])), 1e-3) if before else 0.0
    rates = [(now["packets"] - then["packets"]) / since for now, then in zip(cores, earlier, strict=False)]
    pairs = cast("list[list[str]]", told["pairs"])
    write_facts(
        {
            "function": f"{told['function']} ({told['name']}), process {told['pid']}, for {span:.0f} s",
            "between": ", ".join(f"{inside} and {outside}" for inside, outside in pairs),
            "steering": f"{told['steer']} ({told['why']})" if "why" in told else str(told["steer"]),
        }
    )
    table_of(
        {
            "CORE": core["core"],
            "PACKETS": core["packets"],
            **({"A SECOND": Number(f"{rates[number]:,.0f}")} if rates else {}),
            "DROPPED": sum(cast("dict[str, int]", core["dropped"]).values()),
            "QUEUE": core["queue"],
            "DEEPEST": core["deepest"],
            "GIVEN": core["handed_over"],
            "TAKEN": core["taken_over"],
            "FLOWS": cast("dict[str, int]", core["flows"])["held"],
        }
        for number, core in enumerate(cores)
    )
    write_facts({"Jain's index": f"{told['jain']:.4f}", **_below(told)})
    _show_alerts(told)


def _below(told: JsonObject) -> dict[str, str | None]:
    dropped, counters = (cast("dict[str, int]", told[key]) for key in ("dropped", "counters"))
    advice = "frames longer than the MTU came; run `ethtool -K DEV tx off tso off gso off` at the far end"
    return {
        "dropped": ", ".join(f"{cause} {count}" for cause, count in dropped.items()) or "nothing",
        "advice": advice if dropped.get("cut") else None,
        "counted": ", ".join(f"{name} {count}" for name, count in counters.items()) or None,
    }


def _show_alerts(told: JsonObject) -> None:
    """Show the last alerts of a function, if it has any."""
    table_of(
        {
            "FOUND": str(alert["pattern"]),
            "FROM": f"{alert['source']} {alert['source_port']}",
            "TO": f"{alert['target']} {alert['target_port']}",
            "AT BYTE": str(alert["end"]),
            "ACTION": "dropped" if alert["dropped"] else "alert",
        }
        for alert in cast("list[dict[str, str | int]]", told["alerts"])
    )


def _only() -> str:
    """Return the name of the only running function."""
    from dios.sprayer.runtime.statistics_socket import NotRunningError, names, read_statistics  # noqa: PLC0415 - needs an extra

    running: list[str] = []
    for name in names():
        with contextlib.suppress(NotRunningError):
            read_statistics(name)
            running.append(name)
    if not running:
        raise NotRunningError("no network function runs here; `dios nf run --help` shows how to start one")
    if len(running) > 1:
        raise InvalidError(
            f"several network functions run: {', '.join(running)}. Name one: `dios nf stats {running[0]}`."
        )
    return running[0]


def _side(texts: Sequence[str]) -> Callable[[bytes], int]:
    """Return a function that maps a frame to 0 if its source address is in ``texts``, else to 1."""
    try:
        networks = [ipaddress.ip_network(text) for text in texts]
    except ValueError as error:
        raise InvalidError(f"--inside: {error}") from None

    def side(frame: bytes) -> int:
        at = 12
        while frame[at : at + 2] in {b"\x81\x00", b"\x88\xa8"}:
            at += 4
        start, size = {b"\x08\x00": (14, 4), b"\x86\xdd": (10, 16)}.get(frame[at : at + 2], (0, 0))
        data = frame[at + start : at + start + size]
        if not size or len(data) < size:
            return 0
        source = ipaddress.ip_address(data)
        return int(not any(source in network for network in networks if network.version == source.version))

    return side

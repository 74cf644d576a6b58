"""Network functions: the cost of forwarding, the gain of spraying, fairness, delays, lookups and start-up.

The functions run between network namespaces (``labs.papers.sprayer.lab``) with offloads off; both sides of a
ratio are measured in turns in one run. The sender uses the same processors as the function, so each row
reports its share. The thesis' figures are reproduced by ``dios lab repro sprayer``.
"""

from __future__ import annotations

import contextlib
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from dios.limits import SPRAYER_BATCH
from dios.sprayer.functions.synthetic import Synthetic
from dios.sprayer.linux.offloads import change_features, requested_features
from dios.sprayer.memory_engine import MemoryEngine
from dios.sprayer.runtime.workers import Workers
from labs.benchmarks.measure import median
from labs.benchmarks.report import Goal, Row, Section, judge, number, times
from labs.benchmarks.sprayer_loops import bare_cycles, cycles_each_second, nat_lookups, plain_python
from labs.papers.sprayer.lab import measure, tcp
from labs.papers.sprayer.lab.frames import ABOVE, Frames
from labs.papers.sprayer.lab.measure import LONG, LONG_BURST, ForwardingRate, MeasurementSetting
from labs.papers.sprayer.lab.namespaces import NotHereError, killed_with_parent
from labs.papers.sprayer.lab.namespaces import run as run_command
from labs.papers.sprayer.lab.traffic import FrameSender, frames_to_right
from labs.papers.sprayer.lab.veth_pairs import CABLE, LEFT_LINK, STRANGER_LINK, VethPairs

SEEDS: Final = (31, 32, 33)
ROUNDS: Final = (31, 32, 33, 34, 35)
"""The seeds for comparisons of two ways to steer."""
SECONDS: Final = 1.0
BUSY_SECONDS: Final = 0.6
"""A pause for loops with realtime priority: after a second the kernel gives others a twentieth of it."""
CYCLES: Final = 10_000
LOAD: Final = 0.7
FLOWS: Final = 8
TCP_SECONDS: Final = 3
DEFAULT_SECONDS: Final = 3
SETTLE_SECONDS: Final = 5
"""The default steering begins with rss and has chosen after four seconds, unless it tries spraying, too."""
TRAFFIC: Final = ((1, 0, "flowlet"), (FLOWS, 0, "rss"), (1, CYCLES, "flowlet"))
"""Connections, cycles of processor time for each packet, and the steering of the control: the likely best."""
AGAIN: Final = "again"
"""The control: by how much two sessions with the same steering differ."""
TABLE_FLOWS: Final = 1_000_000
TURNS: Final = 20_000
_MIDDLE_LINK: Final = bytes.fromhex("02d105010001")
_NEXT: Final = "10.215.0.2"
WAIT_S: Final = 20.0
EVERY_S: Final = 0.002


def run(section: Section) -> None:
    """Measure, and compare with the goals."""
    _framework(section)
    _lookups(section)
    _memory(section)
    try:
        with VethPairs() as cables:
            _forwarding(section, cables)
            lower = _one_flow(section, cables)
            _delays(section, cables, lower)
            _first_packet(section, cables)
            if tcp.missing():
                section.trouble.append(f"Jain's index of {FLOWS} flows: {tcp.missing()}")
            else:
                _fairness(section, cables)
                _by_default(section, cables)
    except NotHereError as error:
        section.trouble.append(error.message)


# One core -----------------------------------------------------------------------------------------------
def _forwarding(section: Section, cables: VethPairs) -> None:
    """Forward one flow of long frames on one core: with workers, plain Python and the kernel."""
    setting = MeasurementSetting(cores=1, steer="rss", length=LONG, seed=SEEDS[0], seconds=SECONDS)
    measure.forwarding(cables, None, setting._replace(seconds=0.1))
    _plain(cables)
    ours = {
        title: setting._replace(how=how)
        for title, how in (("packet sockets", "af_packet"), ("AF_XDP", "af_xdp"))
    }
    contenders: dict[str, Callable[[], ForwardingRate]] = {
        **{name: partial(measure.forwarding, cables, None, variant) for name, variant in ours.items()},
        "plain Python": lambda: _by_python(cables, setting),
        "kernel": lambda: _by_kernel(setting),
    }
    rates_by_name: dict[str, list[ForwardingRate]] = {name: [] for name in contenders}
    for _ in SEEDS:
        for name, forward in contenders.items():
            rates_by_name[name].append(forward())
    rates = {name: median([rate.frames_s for rate in rounds]) for name, rounds in rates_by_name.items()}
    alone = {name: median([_us(rate) for rate in rounds]) for name, rounds in rates_by_name.items()}
    both = {
        name: median([_us_with_sender(rate) for rate in rounds]) for name, rounds in rates_by_name.items()
    }
    for name in contenders:
        section.figure(f"1,514 bytes, one flow, one core, {name}", rates[name], "frames/s")
        section.figure(f"the same, {name}, processor time without the sender", alone[name], "us per frame")
        section.figure(f"the same, {name}, processor time with the sender", both[name], "us per frame")
    for name in ours:
        ratio = rates[name] / rates["plain Python"]
        section.rows.append(
            Row(
                f"forwarding with a stateless function, one flow, one core, {name}",
                f"{number(rates[name])} frames/s",
                f"plain Python {number(rates['plain Python'])}; the kernel {number(rates['kernel'])}",
                times(ratio),
                judge("3 x", ratio, 3.0, below=False),
                Goal("10 x, and above the kernel", ratio >= 10.0 and rates[name] > rates["kernel"]),
                f"a frame needs {number(alone[name])} us of processor time in a worker and "
                f"{number(alone['plain Python'])} us in plain Python, which is "
                f"{times(alone['plain Python'] / alone[name])}; with the sender {number(both[name])} us, "
                f"{number(both['plain Python'])} us and, for the kernel, which forwards on the sender's "
                f"processor, {number(both['kernel'])} us",
            )
        )


def _us(rate: ForwardingRate) -> float:
    return 1e6 * rate.worker_cpus / rate.frames_s


def _us_with_sender(rate: ForwardingRate) -> float:
    return 1e6 * (rate.worker_cpus + rate.sender_cpus) / rate.frames_s


def _by_python(cables: VethPairs, setting: MeasurementSetting) -> ForwardingRate:
    frames = frames_to_right(1, setting.length, setting.seed, burst=LONG_BURST)
    with plain_python(cables) as counter, FrameSender(cables.left, frames) as sender:
        return measure.measure_arrivals(cables, sender, counter, setting.seconds, [0])


def _by_kernel(setting: MeasurementSetting) -> ForwardingRate:
    """Forward with the kernel, between separate network namespaces, at the maximum rate."""
    with VethPairs() as cables:
        turned = "/proc/sys/net/ipv4"
        off = " ".join(f"echo 0 > {turned}/conf/{name}/rp_filter;" for name in ("all", "in0", "out0"))
        run_command(cables.middle.inside("sh", "-c", f"echo 1 > {turned}/ip_forward; {off}"))
        cables.middle.batch(
            [
                f"route add {_NEXT}/32 dev out0",
                f"neighbour add {_NEXT} lladdr {STRANGER_LINK.hex(':')} dev out0",
                f"route add 10.0.0.0/8 via {_NEXT} dev out0",
            ]
        )
        _plain(cables)
        frames = Frames(
            1, setting.length, setting.seed, target=_MIDDLE_LINK, source=LEFT_LINK, burst=LONG_BURST
        )
        with FrameSender(cables.left, frames) as sender:
            return measure.measure_arrivals(cables, sender, None, setting.seconds)


def _plain(cables: VethPairs) -> None:
    """Switch offloads off on the function's side, as for a running function."""
    with cables.middle.entered():
        for name in ("in0", "out0"):
            features = [
                feature for feature in requested_features(name) if feature.startswith(("tx-", "rx-gro"))
            ]
            plain = [
                feature
                for feature in features
                if "segmentation" in feature or "checksum" in feature or "gro" in feature
            ]
            change_features(name, dict.fromkeys(plain, False))


def _framework(section: Section) -> None:
    """Measure the cycles that workers add to the bare loop of an engine."""
    hertz = cycles_each_second()
    text = [message.tobytes()[ABOVE:] for message in frames_to_right(1, measure.SHORT, SEEDS[0]).messages]
    spans: dict[str, list[float]] = {"bare": [], "workers": [], "synthetic": []}
    for _ in range(5):
        engines = [MemoryEngine(text, 1, room=0, again=measure.AGAIN) for _ in spans]
        spans["bare"].append(bare_cycles(engines[0], TURNS) / (TURNS * SPRAYER_BATCH))
        for name, engine, function in (
            ("workers", engines[1], None),
            ("synthetic", engines[2], Synthetic(0)),
        ):
            workers = Workers(function, engine, seed=SEEDS[0])
            workers.turn(0, TURNS // 10)
            begun = time.thread_time()
            frames = workers.turn(0, TURNS)
            spans[name].append((time.thread_time() - begun) * hertz / frames)
    medians = {name: median(samples) for name, samples in spans.items()}
    for name, value in medians.items():
        section.figure(f"in memory, one core, {name}", value, "cycles a packet")
    own = medians["workers"] - medians["bare"]
    section.rows.append(
        Row(
            "cost of the framework in addition to the bare loop of an engine",
            f"{number(own)} cycles per packet",
            f"the loop itself {number(medians['bare'])}",
            "",
            judge("400", own, 400.0),
            judge("150", own, 150.0),
            f"frames in memory, stateless; with the synthetic function, a flow and its header, "
            f"{number(medians['synthetic'])} in all; {hertz / 1e9:.2f} GHz",
        )
    )


def _lookups(section: Section) -> None:
    """Measure lookups in the table of a NAT."""
    lookups = [nat_lookups(TABLE_FLOWS, seed) for seed in SEEDS]
    batches = section.figure(
        "NAT, 1,000,000 flows, get_flows",
        median([lookup.in_batches for lookup in lookups]) / 1e6,
        "million/s",
    )
    single = section.figure(
        "NAT, 1,000,000 flows, get_flow", median([lookup.one_by_one for lookup in lookups]) / 1e6, "million/s"
    )
    section.rows.append(
        Row(
            "NAT lookups on one core, 1,000,000 flows",
            f"{number(batches)} million/s",
            "",
            "",
            judge("5 million/s", batches, 5.0, below=False),
            judge("15 million/s", batches, 15.0, below=False),
            f"get_flows, batches of {SPRAYER_BATCH} in random order; get_flow {number(single)}; "
            f"{min(lookup.held for lookup in lookups):,} flows held",
        )
    )


# Two cores ----------------------------------------------------------------------------------------------
def _both(rate: Callable[[str, int], ForwardingRate]) -> dict[str, list[ForwardingRate]]:
    """Measure RSS and spraying in turns."""
    rates_by_steer: dict[str, list[ForwardingRate]] = {"rss": [], "spray": []}
    for seed in ROUNDS:
        for steer, rounds in rates_by_steer.items():
            rounds.append(rate(steer, seed))
    return rates_by_steer


def _gain(section: Section, rates_by_steer: dict[str, list[ForwardingRate]], place: str, note: str) -> None:
    """Add the row of one flow."""
    rates = {name: median([rate.frames_s for rate in rounds]) for name, rounds in rates_by_steer.items()}
    for name, value in rates.items():
        section.figure(f"one flow, {CYCLES:,} cycles, {place}, {name}", value, "frames/s")
    ratios = [two.frames_s / rss.frames_s for rss, two in zip(*rates_by_steer.values(), strict=True)]
    ratio = median(ratios)
    ratios_text = ", ".join(f"{value:.2f}" for value in ratios)
    section.rows.append(
        Row(
            f"one flow, {CYCLES:,} cycles a packet, two cores: spraying, {place}",
            f"{number(rates['spray'])} frames/s",
            f"RSS {number(rates['rss'])}",
            times(ratio),
            judge("1.7 x", ratio, 1.7, below=False),
            judge("1.9 x", ratio, 1.9, below=False),
            f"each round: {ratios_text}; {note}",
        )
    )


def _memory(section: Section) -> None:
    setting = MeasurementSetting(cores=2, seconds=SECONDS)
    rates_by_steer = _both(
        lambda steer, seed: measure.in_memory(Synthetic(CYCLES), setting._replace(steer=steer, seed=seed))
    )
    _gain(section, rates_by_steer, "frames in memory", "workers have both processors for themselves")


def _sprayed(cables: VethPairs, how: str, steer: str, seed: int) -> ForwardingRate:
    setting = MeasurementSetting(cores=2, seconds=BUSY_SECONDS, how=how, steer=steer, seed=seed)
    return measure.forwarding(cables, Synthetic(CYCLES), setting)


def _one_flow(section: Section, cables: VethPairs) -> float:
    """Measure one flow between namespaces; return the lower rate with packet sockets."""
    lower = 0.0
    for how, title in (("af_xdp", "AF_XDP"), ("af_packet", "packet sockets")):
        rates_by_steer = _both(partial(_sprayed, cables, how))
        sender = median([rate.sender_cpus for rate in rates_by_steer["spray"]])
        share = median([rate.worker_cpus for rate in rates_by_steer["spray"]])
        per_cpu = [median([rate.per_cpu_s for rate in rounds]) for rounds in rates_by_steer.values()]
        section.figure(f"one flow, spraying, {title}, processors of the sender", sender, "processors")
        section.figure(f"one flow, spraying, {title}, processors of workers", share, "processors")
        note = (
            f"with spraying, the sender uses {sender:.2f} of the two processors and the workers {share:.2f}; "
            f"a second of a worker's processor is worth {number(per_cpu[1])} frames sprayed and "
            f"{number(per_cpu[0])} by RSS"
        )
        _gain(section, rates_by_steer, f"between namespaces, {title}", note)
        lower = min(median([rate.frames_s for rate in rounds]) for rounds in rates_by_steer.values())
    return lower


def _delays(section: Section, cables: VethPairs, lower: float) -> None:
    """Measure the 99th percentile at 70 % of the lower rate."""
    late: dict[str, list[float]] = {"rss": [], "spray": []}
    lost, sent = 0.0, list[float]()
    for seed in SEEDS:
        rate = int(LOAD * lower)
        for steer in ("spray", "rss"):
            setting = MeasurementSetting(cores=2, steer=steer, seed=seed, seconds=SECONDS)
            delays = measure.delay(cables, Synthetic(CYCLES), setting, rate)
            # With spraying, workers on both processors have priority over the sender, so RSS gets the same
            # rate.
            rate = min(rate, int(delays.frames_s))
            late[steer].append(delays.p99)
            lost = max(lost, delays.lost)
            sent.append(delays.frames_s)
            section.figure(
                f"one flow, {steer}, seed {seed}, frames sent individually", delays.frames_s, "frames/s"
            )
            section.figure(f"one flow, {steer}, seed {seed}, median", delays.median, "us")
            section.figure(f"one flow, {steer}, seed {seed}, 99th percentile", delays.p99, "us")
    own, peer = median(late["spray"]), median(late["rss"])
    section.rows.append(
        Row(
            f"99th percentile round trip, one flow, {CYCLES:,} cycles, at up to {LOAD:.0%} load: spraying",
            f"{number(own)} us",
            f"RSS {number(peer)} us",
            times(own / peer),
            judge("not worse", own / peer, 1.0),
            judge("better", own / peer, 0.95),
            f"{number(LOAD * lower)} frames/s requested, at least {number(min(sent))} sent; at most "
            f"{lost:.2%} were lost",
        )
    )


def _fairness(section: Section, cables: VethPairs) -> None:
    """Measure Jain's index of TCP connections of the kernel."""
    jain_by_steer: dict[str, list[float]] = {"rss": [], "spray": []}
    carried: dict[str, list[float]] = {"rss": [], "spray": []}
    for seed in SEEDS:
        for steer, indices in jain_by_steer.items():
            setting = MeasurementSetting(cores=2, steer=steer, flows=FLOWS, seed=seed, seconds=TCP_SECONDS)
            throughput = tcp.throughput(cables, Synthetic(CYCLES), setting)
            indices.append(
                section.figure(f"{FLOWS} connections, {steer}, seed {seed}", throughput.jain, "Jain's index")
            )
            carried[steer].append(
                section.figure(
                    f"{FLOWS} connections, {steer}, seed {seed}", throughput.bits_s / 1e9, "Gbit/s"
                )
            )
            section.figure(
                f"{FLOWS} connections, {steer}, seed {seed}, retransmitted", 100 * throughput.again, "%"
            )
    # The worst seed decides.
    own, peer = min(jain_by_steer["spray"]), min(jain_by_steer["rss"])
    section.rows.append(
        Row(
            f"Jain's index of {FLOWS} connections, {CYCLES:,} cycles a packet: spraying, the worst seed",
            f"{own:.4f}",
            f"RSS {peer:.4f}",
            "",
            judge("0.98", own, 0.98, below=False),
            judge("0.995", own, 0.995, below=False),
            f"iperf3, {TCP_SECONDS} s each; together {median(carried['spray']):.2f} Gbit/s sprayed and "
            f"{median(carried['rss']):.2f} by RSS",
        )
    )


def _by_default(section: Section, cables: VethPairs) -> None:
    """Compare the default steering with each fixed one, over TCP connections of the kernel.

    Each round has all of them and the control, in another order, so that a ratio is one of neighbours in
    time. The median of these ratios decides.
    """
    for flows, cycles, control in TRAFFIC:
        gbits: dict[str, list[float]] = {"auto": [], "rss": [], "flowlet": [], "spray": [], AGAIN: []}
        chosen: list[str] = []
        for turn, seed in enumerate(ROUNDS):
            order = list(gbits)
            for name in order[turn:] + order[:turn]:
                setting = MeasurementSetting(
                    cores=2,
                    steer=control if name == AGAIN else name,
                    flows=flows,
                    seed=seed,
                    seconds=DEFAULT_SECONDS,
                )
                throughput = tcp.throughput(
                    cables, Synthetic(cycles), setting, settle_s=SETTLE_SECONDS, first=False
                )
                gbits[name].append(throughput.bits_s / 1e9)
                if name == "auto":
                    chosen.append(throughput.steer)
        plural = "s" if flows > 1 else ""
        _default_row(section, f"{flows} connection{plural}, {cycles:,} cycles", gbits, chosen, control)


def _default_row(
    section: Section, name: str, gbits: dict[str, list[float]], chosen: list[str], control: str
) -> None:
    """Add the row of one kind of traffic; ``gbits`` has Gbit/s by steering and round."""
    rates = {steer: median(values) for steer, values in gbits.items()}
    for steer, rate in rates.items():
        section.figure(f"{name}, steering by {steer}", rate, "Gbit/s")
    fixed = [steer for steer in rates if steer not in ("auto", AGAIN)]
    best = max(fixed, key=lambda steer: rates[steer])
    ratios = _paired(gbits["auto"], gbits[best])
    noise = _paired(gbits[AGAIN], gbits[control])
    section.figure(f"{name}, auto compared with {best}, median of pairs", median(ratios), "x")
    section.figure(f"{name}, {control} compared with itself, median of pairs", median(noise), "x")
    choices = ", ".join(f"{steer} {chosen.count(steer)}" for steer in sorted(set(chosen)))
    section.rows.append(
        Row(
            f"{name} a packet, two cores: the default steering",
            f"{rates['auto']:.2f} Gbit/s",
            ", ".join(f"{steer} {rates[steer]:.2f}" for steer in fixed),
            times(median(ratios)),
            judge("0.95 of the best", median(ratios), 0.95, below=False),
            judge("0.95 of the best", median(ratios), 0.95, below=False),
            f"iperf3, {DEFAULT_SECONDS} s each after {SETTLE_SECONDS} s, {len(chosen)} rounds in turns; "
            f"compared with {best} in each round: {_spread(ratios)}; {control} compared with "
            f"itself: {_spread(noise)}; chosen at the end: {choices}; sender, receiver and workers share the "
            "processors",
        )
    )


def _paired(ours: list[float], theirs: list[float]) -> list[float]:
    return [own / other for own, other in zip(ours, theirs, strict=True)]


def _spread(ratios: list[float]) -> str:
    """Return the median and the quartiles."""
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return f"{middle:.2f} (quartiles {low:.2f} to {high:.2f})"


# A start ------------------------------------------------------------------------------------------------
def _first_packet(section: Section, cables: VethPairs) -> None:
    """Measure from the start of the command to the first packet on the other side."""
    # The first start may compile.
    spans = [_started(cables) for _ in range(1 + len(SEEDS))]
    own = section.figure("dios nf run nat, first packet, compiled before", median(spans[1:]), "s")
    section.rows.append(
        Row(
            "first packet after the start of a NAT, compiled code cached",
            f"{number(own)} s",
            "",
            "",
            judge("2 s", own, 2.0),
            judge("0.5 s", own, 0.5),
            f"`dios nf run nat`; the first start in this run {number(spans[0])} s",
        )
    )


def _started(cables: VethPairs) -> float:
    words = (
        "nf",
        "run",
        "nat",
        "--set",
        "addresses=10.214.0.9",
        "--in",
        "in0",
        "--out",
        "out0",
        "--cores",
        "2",
    )
    command = cables.middle.inside(str(Path(sys.executable).with_name("dios")), *words)
    with (
        _heard(cables) as first,
        _knocking(cables),
        subprocess.Popen(
            killed_with_parent(command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process,
    ):
        begun = time.monotonic()
        try:
            return first(WAIT_S) - begun
        finally:
            process.terminate()
            process.wait()


@contextlib.contextmanager
def _heard(cables: VethPairs) -> Iterator[Callable[[float], float]]:
    """Wait for the first TCP frame on the right; yield a function that returns its time of arrival."""
    with cables.right.entered():
        ear = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
        ear.bind((CABLE, 0x0800))

    def first(limit_s: float) -> float:
        ear.settimeout(limit_s)
        while ear.recv(2048)[23] != 6:
            continue
        return time.monotonic()

    with ear:
        yield first


@contextlib.contextmanager
def _knocking(cables: VethPairs) -> Iterator[None]:
    """Open connections on the left, one after the other."""
    over = threading.Event()
    with FrameSender(cables.left, frames_to_right(4096, measure.SHORT, SEEDS[0])) as sender:

        def knock() -> None:
            while not over.is_set():
                for message in sender.frames.opening:
                    sender.give(message)
                    if over.wait(EVERY_S):
                        return

        thread = threading.Thread(target=knock)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

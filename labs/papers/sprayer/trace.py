"""Sizes and concurrency of the TCP flows of a packet capture: Figures 3.1 and 3.2 of the thesis.

A flow is a five-tuple in one direction. Its size is the sum of the total lengths of its IP packets, so a
capture may have the beginnings of packets alone. Files of pcap and pcapng are read by ``dpkt``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, TypedDict

import dpkt
import numpy as np
import numpy.typing as npt

from dios.errors import InvalidError
from labs.limits import SPRAYER_TRACE_FLOWS_MAX, SPRAYER_TRACE_PACKETS_MAX
from labs.plotting import Lines, distribution

WINDOW_US: Final = 150.0
"""Ten times the largest 99th percentile of delays that the thesis measured (section 3.1)."""
LARGE_BYTES: Final = 10 * 10**6
_RAW: Final = frozenset({12, 14, 101})
_ETHERNET: Final = 1
_COOKED: Final = 113
_EVERY: Final = 65_536
_POINTS: Final = 2_000
"""Points of a line in a picture."""
_SIZES: Final = (1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9)

Ints = npt.NDArray[np.int64]


class Trace(NamedTuple):
    """The TCP packets of a capture, in the order of the file."""

    times: npt.NDArray[np.float64]
    """(P,) seconds."""
    flows: npt.NDArray[np.int32]
    """(P,) the index of each packet's flow."""
    sizes: npt.NDArray[np.int32]
    """(P,) bytes of the IP packet."""
    others: int
    """Packets that are not of TCP, or whose ports are not in the file."""


class FlowShareRow(TypedDict):
    """The flows up to a size: their share of all flows, and of all bytes."""

    up_to_bytes: float
    flows: float
    bytes: float


class ConcurrencyRow(TypedDict):
    """The number of flows with a packet in a window, over the windows that have any."""

    flows: str
    windows: int
    median: float
    p99: float
    most: int


class TraceReport(TypedDict):
    """Figures 3.1 and 3.2 for a capture; ``large_share`` is the share of bytes in large flows."""

    file: str
    packets: int
    others: int
    seconds: float
    flows: int
    bytes: int
    window_us: float
    large_bytes: int
    large_flows: int
    large_share: float
    sizes: list[FlowShareRow]
    concurrency: list[ConcurrencyRow]
    pictures: list[str]


def read_trace(path: Path, progress: Callable[[int], None] | None = None) -> Trace:
    """Read the TCP packets of a capture; ``progress`` is called with the number of bytes read so far.

    Raises InvalidError for a file that is no capture of Ethernet, IP or Linux' cooked packets, that is
    damaged, or that is larger than the bounds; and ``OSError``.
    """
    times = np.zeros(_EVERY, np.float64)
    flows, sizes = np.zeros(_EVERY, np.int32), np.zeros(_EVERY, np.int32)
    known: dict[tuple[object, ...], int] = {}
    count = others = 0
    with path.open("rb") as file:
        try:
            for time_s, data, kind in _packets(file):
                parsed = _flow_of(data, kind)
                if parsed is None:
                    others += 1
                    continue
                if count == SPRAYER_TRACE_PACKETS_MAX:
                    raise InvalidError(
                        f"{path}: more than {SPRAYER_TRACE_PACKETS_MAX} packets of TCP; "
                        "cut the file, as in `editcap -c 10000000 FILE PART`"
                    )
                if count == len(times):
                    times = np.resize(times, 2 * count)
                    flows, sizes = np.resize(flows, 2 * count), np.resize(sizes, 2 * count)
                flow, size = parsed
                times[count], sizes[count] = time_s, size
                flows[count] = known.setdefault(flow, len(known))
                if len(known) > SPRAYER_TRACE_FLOWS_MAX:
                    raise InvalidError(
                        f"{path}: more than {SPRAYER_TRACE_FLOWS_MAX} flows; "
                        "cut the file, as in `editcap -c 10000000 FILE PART`"
                    )
                count += 1
                if progress and count % _EVERY == 0:
                    progress(file.tell())
        except (ValueError, EOFError, struct.error, dpkt.Error, MemoryError, OverflowError) as error:
            raise InvalidError(
                f"{path}: no capture that can be read, or a damaged one: {error or type(error).__name__}. "
                "Give a file of pcap or pcapng, as written by tcpdump or Wireshark"
            ) from None
    return Trace(times[:count], flows[:count], sizes[:count], others)


def _packets(file: BinaryIO) -> Iterator[tuple[float, bytes, int]]:
    """Yield time, bytes and link type of each packet."""
    reader = dpkt.pcap.UniversalReader(file)
    kind = reader.datalink()
    if kind not in {_ETHERNET, _COOKED, *_RAW}:
        raise InvalidError(
            f"cannot read packets of link type {kind}: only 1 (Ethernet), 101 (IP) and 113 (cooked) are "
            "supported"
        )
    for time_s, data in reader:
        yield float(time_s), data, kind


def _flow_of(data: bytes, kind: int) -> tuple[tuple[object, ...], int] | None:
    """Return the five-tuple and the size of a packet of TCP; None for all else."""
    try:
        if kind == _ETHERNET:
            packet = dpkt.ethernet.Ethernet(data).data
        elif kind == _COOKED:
            packet = dpkt.sll.SLL(data).data
        else:
            packet = dpkt.ip.IP(data) if data[0] >> 4 == 4 else dpkt.ip6.IP6(data)
        if isinstance(packet, dpkt.ip.IP):
            size = int(packet.len)
        elif isinstance(packet, dpkt.ip6.IP6):
            size = 40 + int(packet.plen)
        else:
            return None
        segment = packet.data
        if isinstance(segment, bytes) and packet.p == dpkt.ip.IP_PROTO_TCP and len(segment) >= 4:
            # The file has only the beginning of the header.
            ports = struct.unpack(">HH", segment[:4])
        elif isinstance(segment, dpkt.tcp.TCP):
            ports = (segment.sport, segment.dport)
        else:
            return None
    except (dpkt.Error, IndexError, struct.error, ValueError, KeyError):
        return None
    return (packet.src, packet.dst, *ports), size


def concurrent_flows(trace: Trace, window_us: float, chosen: npt.NDArray[np.bool_]) -> Ints:
    """Return the number of ``chosen`` flows (F,) with a packet in each window that has any."""
    mine = chosen[trace.flows]
    if not mine.any():
        return np.zeros(0, np.int64)
    windows = np.floor((trace.times[mine] - trace.times.min()) / (window_us * 1e-6)).astype(np.int64)
    pairs = np.unique(np.stack([windows, trace.flows[mine].astype(np.int64)]), axis=1)
    counts: Ints = np.unique(pairs[0], return_counts=True)[1].astype(np.int64)
    return counts


def describe_trace(
    trace: Trace, name: str, *, window_us: float = WINDOW_US, large_bytes: int = LARGE_BYTES
) -> tuple[TraceReport, tuple[Lines, Lines]]:
    """Return the numbers and pictures of Figures 3.1 and 3.2 for a capture.

    Flows above ``large_bytes`` are large. Raises InvalidError if there are no packets of TCP, and for a
    window that is not positive.
    """
    if not len(trace.times):
        raise InvalidError(f"{name}: there are no packets of TCP in this capture ({trace.others} others)")
    if not 0 < window_us < 1e12:
        raise InvalidError(f"a window of {window_us:g} microseconds: give a positive number")
    totals = np.bincount(trace.flows, trace.sizes).astype(np.int64)
    ordered = np.sort(totals)
    below = np.cumsum(ordered)
    whole = int(below[-1])
    large = totals > large_bytes
    counts = {
        "all": concurrent_flows(trace, window_us, np.ones(len(totals), np.bool_)),
        "large": concurrent_flows(trace, window_us, large),
    }
    sizes: list[FlowShareRow] = []
    for size in _SIZES:
        place = int(np.searchsorted(ordered, size, side="right"))
        sizes.append(
            {
                "up_to_bytes": size,
                "flows": place / len(ordered),
                "bytes": float(below[place - 1]) / whole if place else 0.0,
            }
        )
        if place == len(ordered):
            break
    report: TraceReport = {
        "file": name,
        "packets": len(trace.times),
        "others": trace.others,
        "seconds": float(trace.times.max() - trace.times.min()),
        "flows": len(totals),
        "bytes": whole,
        "window_us": window_us,
        "large_bytes": large_bytes,
        "large_flows": int(large.sum()),
        "large_share": float(totals[large].sum()) / whole,
        "sizes": sizes,
        "concurrency": [_concurrency(which, per_window) for which, per_window in counts.items()],
        "pictures": [],
    }
    every = np.unique(np.linspace(0, len(ordered) - 1, _POINTS).astype(np.int64))
    shares = Lines(
        "flow-sizes",
        f"Figure 3.1: sizes of {len(totals)} TCP flows",
        "bytes of a flow",
        "share",
        {
            "flows": (ordered[every].astype(np.float64), (every + 1) / len(ordered)),
            "bytes": (ordered[every].astype(np.float64), below[every] / whole),
        },
        log_x=True,
    )
    lines = {
        which: _thinned(*distribution(per_window.astype(np.float64)))
        for which, per_window in counts.items()
        if len(per_window)
    }
    concurrent = Lines(
        "concurrent-flows",
        f"Figure 3.2: flows in a window of {window_us:g} microseconds",
        "flows",
        "share of windows",
        lines,
    )
    return report, (shares, concurrent)


def _thinned(
    x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the last point of each value: the corners of a distribution of whole numbers."""
    last = np.append(np.flatnonzero(np.diff(x)), len(x) - 1)
    return x[last], y[last]


def _concurrency(which: str, counts: Ints) -> ConcurrencyRow:
    if not len(counts):
        return {"flows": which, "windows": 0, "median": 0.0, "p99": 0.0, "most": 0}
    return {
        "flows": which,
        "windows": len(counts),
        "median": float(np.median(counts)),
        "p99": float(np.percentile(counts, 99)),
        "most": int(counts.max()),
    }

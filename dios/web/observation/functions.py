"""The network functions of this machine: packets of each core, drops by cause, and waiting times.

Functions do not measure the time of single packets. The mean time that a packet waits for its core follows
from the packets that wait and those that are handled in a second (Little's law).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from dios.client.plain_text import plain
from dios.errors import DiosError
from dios.web.observation.cluster_view import Row, number, rows

FUNCTIONS_MAX: Final = 64
SAMPLES_MAX: Final = 60
_FOLDER: Final = Path("/run/dios-functions")


class CoreSample(NamedTuple):
    """The state of a core; all but ``queue``, the packets that wait now, are sums since the start."""

    packets: int
    sent: int
    dropped: int
    queue: int
    deepest: int
    flows: int


class FunctionSample(NamedTuple):
    """A function at ``at_s`` seconds after its start. ``jain`` is 1 if all cores have equal work."""

    at_s: float
    function: str
    steer: str
    engine: str
    cores: Mapping[int, CoreSample]
    dropped: Mapping[str, int]
    jain: float


class CoreRate(NamedTuple):
    """The packets that a core handled in a second, and their mean wait in seconds; None if unknown."""

    packets_s: float | None
    wait_s: float | None


def read_functions(folder: Path = _FOLDER) -> tuple[dict[str, FunctionSample], int]:
    """Return the functions that the caller may ask, by name, and the number of those that do not answer."""
    try:
        names = sorted(path.stem for path in folder.glob("*.sock"))[:FUNCTIONS_MAX]
    except OSError:
        return {}, 0
    if not names:
        return {}, 0
    # Late, because it loads numeric code, and few machines run network functions.
    from dios.sprayer.runtime.statistics_socket import read_statistics  # noqa: PLC0415 - see above

    samples: dict[str, FunctionSample] = {}
    for name in names:
        try:
            samples[plain(name)] = sample_of(read_statistics(name, folder))
        except DiosError:
            continue  # it has ended, or belongs to another user
    return samples, len(names) - len(samples)


def sample_of(report: Row) -> FunctionSample:
    """Return a sample of a function's own report; values that are malformed are 0."""
    return FunctionSample(
        number(report.get("seconds")),
        plain(str(report.get("function", ""))),
        plain(str(report.get("steer", ""))),
        plain(str(report.get("engine", ""))),
        {int(number(row.get("core"))): _core(row) for row in rows(report, "cores")},
        {plain(str(cause)): int(number(count)) for cause, count in _table(report.get("dropped")).items()},
        number(report.get("jain")),
    )


def _core(row: Row) -> CoreSample:
    return CoreSample(
        packets=int(number(row.get("packets"))),
        sent=int(number(row.get("sent"))),
        dropped=sum(int(number(count)) for count in _table(row.get("dropped")).values()),
        queue=int(number(row.get("queue"))),
        deepest=int(number(row.get("deepest"))),
        flows=int(number(_table(row.get("flows")).get("held"))),
    )


def _table(value: object) -> Mapping[object, object]:
    return value if isinstance(value, dict) else {}


class FunctionHistory:
    """The last samples of each function; a function that began again has no earlier ones."""

    def __init__(self) -> None:
        self._past: Final[dict[str, deque[FunctionSample]]] = {}

    def add(self, samples: Mapping[str, FunctionSample]) -> None:
        """Add one sample of each function, and forget the functions that ended."""
        for name in self._past.keys() - samples.keys():
            del self._past[name]
        for name, sample in samples.items():
            past = self._past.setdefault(name, deque(maxlen=SAMPLES_MAX))
            if past and (sample.at_s < past[-1].at_s or sample.cores.keys() != past[-1].cores.keys()):
                past.clear()
            past.append(sample)

    def samples(self, name: str) -> Sequence[FunctionSample]:
        """Return the samples of a function, the oldest first."""
        return self._past.get(name, ())

    def rate(self, name: str, core: int) -> CoreRate:
        """Return the rate of a core over the kept samples, and its mean waiting time by Little's law."""
        past = self.samples(name)
        seconds = past[-1].at_s - past[0].at_s if len(past) > 1 else 0.0
        if seconds <= 0:
            return CoreRate(None, None)
        rate = (past[-1].cores[core].packets - past[0].cores[core].packets) / seconds
        waiting = sum(sample.cores[core].queue for sample in past) / len(past)
        if not rate:
            return CoreRate(rate, None)
        return CoreRate(rate, waiting / rate)

    def lines(self, name: str, begin_s: float) -> Mapping[str, Sequence[tuple[float, float]]]:
        """Return the packets in a second of each core over time; ``begin_s`` is the start of the function."""
        past = list(self.samples(name))
        return {
            f"core {core}": [
                (
                    begin_s + later.at_s,
                    (later.cores[core].packets - before.cores[core].packets) / (later.at_s - before.at_s),
                )
                for before, later in pairwise(past)
                if later.at_s > before.at_s
            ]
            for core in (past[-1].cores if past else ())
        }

"""The metrics of the network functions of this machine that the caller may ask."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from dios.errors import DiosError
from dios.node.metrics.family import Family, Kind, Reading, Value, readings
from dios.node.metrics.of_scheduler import LABELLED_MAX, number_of, rows_of

_FUNCTIONS: Final = Path("/run/dios-functions")

Statistics: TypeAlias = Sequence[tuple[str, Mapping[str, object]]]
"""The statistics of each function, with its name."""


def _of_cores(key: str) -> Callable[[Statistics], Iterator[Value]]:
    def read(functions: Statistics) -> Iterator[Value]:
        for name, statistics in functions:
            for row in rows_of(statistics.get("cores")):
                yield (name, str(row.get("core", ""))), number_of(row.get(key))

    return read


def _dropped(functions: Statistics) -> Iterator[Value]:
    for name, statistics in functions:
        dropped = statistics.get("dropped")
        for cause, count in sorted(dropped.items()) if isinstance(dropped, dict) else ():
            yield (name, str(cause)), number_of(count)


FUNCTION_FAMILIES: Final[Mapping[str, Family[Statistics]]] = {
    "dios_nf_packets_total": Family(
        Kind.COUNTER, "Packets that the function handled.", _of_cores("packets"), labels=("function", "core")
    ),
    "dios_nf_dropped_packets_total": Family(
        Kind.COUNTER, "Packets dropped, by cause.", _dropped, labels=("function", "cause")
    ),
    "dios_nf_queued_packets": Family(
        Kind.GAUGE, "Packets that wait for a core.", _of_cores("queue"), labels=("function", "core")
    ),
}


def of_functions(folder: Path = _FUNCTIONS) -> Iterator[Reading]:
    """Return the metrics of the network functions of this machine."""
    return readings(FUNCTION_FAMILIES, _statistics(folder))


def _statistics(folder: Path) -> Statistics:
    try:
        names = sorted(path.stem for path in folder.glob("*.sock"))[:LABELLED_MAX]
    except OSError:
        return ()
    if not names:
        return ()
    # Late, because it loads numeric code, and few machines run network functions.
    from dios.sprayer.runtime.statistics_socket import read_statistics  # noqa: PLC0415 - see above

    functions: list[tuple[str, Mapping[str, object]]] = []
    for name in names:
        try:
            functions.append((name, read_statistics(name, folder)))
        except DiosError:
            continue  # it has ended, or belongs to another user
    return functions

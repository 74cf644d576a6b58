"""The types of the statistics of network functions, from which ``dios schema`` makes JSON schemas."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from dios.sprayer.network_function import AlertReport


class CoreReport(TypedDict):
    """The statistics of one core since the start; ``dropped`` is by cause."""

    core: int
    packets: int
    received: int
    sent: int
    connection_packets: int
    regular_packets: int
    handed_over: int
    taken_over: int
    deepest: int
    turns: int
    idle_turns: int
    bytes: int
    dropped: dict[str, int]
    queue: int
    flows: dict[str, int]
    interfaces: dict[str, int]


class CoresReport(TypedDict):
    """The statistics of each core and of all cores together; the function's own counters and last alerts."""

    cores: list[CoreReport]
    packets: int
    dropped: dict[str, int]
    jain: float
    counters: dict[str, int]
    alerts: list[AlertReport]


class FunctionReport(TypedDict):
    """A function that runs between pairs of interfaces; ``why`` is the reason of an automatic steering."""

    name: str
    function: str
    pid: int
    steer: str
    engine: str
    pairs: list[list[str]]
    why: NotRequired[str]


class RunningReport(FunctionReport, CoresReport):
    """A function, and its statistics since its start."""

    seconds: float


class ReplayReport(TypedDict):
    """The statistics of all cores for packets of a file."""

    counts: dict[str, int]
    dropped: dict[str, int]
    flows: dict[str, int]
    counters: dict[str, int]
    alerts: list[AlertReport]

from __future__ import annotations

import pytest

from dios.errors import ProtocolError
from dios.lib.jobs import orders
from dios.lib.jobs.orders import (
    Finished,
    MapOrder,
    PairsReceived,
    ProgressReport,
    ReduceOrder,
    Report,
    StreamRead,
)
from dios.lib.jobs.records import Segment


def test_frozen_orders() -> None:
    """The bytes of an order, which docs/libraries.md describes, do not change."""
    segment = Segment(0, 1, 9, 2, 5, "a")
    to_mapper = MapOrder(3, 1, 2, (0, 1), (segment,), 4096, 512)
    assert orders.encode(to_mapper).hex() == "980103010292000191960001090205a161cd1000cd0200"
    assert orders.decode_order(orders.encode(to_mapper)) == to_mapper
    to_reducer = ReduceOrder(1, 2, 3, 4096, ordered=True)
    assert orders.encode(to_reducer).hex() == "9602010203cd1000c3"
    assert orders.decode_order(orders.encode(to_reducer)) == to_reducer


@pytest.mark.parametrize(
    ("report", "frozen"),
    [
        (ProgressReport(7), "920a07"),
        (StreamRead(1, 2), "930b0102"),
        (PairsReceived(1, 2), "930c0102"),
        (Finished(5, 6, 7, 8), "950d05060708"),
    ],
)
def test_frozen_reports(report: Report, frozen: str) -> None:
    """The bytes of a report, which docs/libraries.md describes, do not change."""
    assert orders.encode(report).hex() == frozen
    assert orders.decode_report(bytes.fromhex(frozen)) == report


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x92\x0a\xa1x", b"\x92\x63\x01", b"\x91\x0b"])
def test_malformed_words_are_refused(data: bytes) -> None:
    """What is no order or report raises ProtocolError."""
    with pytest.raises(ProtocolError):
        orders.decode_report(data)
    with pytest.raises(ProtocolError):
        orders.decode_order(data)

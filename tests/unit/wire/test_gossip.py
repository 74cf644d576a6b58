"""The bytes of membership messages: frozen, bounded, and refused when they are none."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from dios import limits
from dios.errors import ProtocolError
from dios.ids import NodeId
from dios.wire import gossip
from dios.wire.gossip import Ack, Digests, GossipMessage, Load, MemberRow, News, Ping, PingRequest, Table
from dios.wire.types import Fitness, NodeStatus

ROW = MemberRow(
    NodeId(7),
    "n1",
    "r1",
    "h:1",
    3,
    2,
    NodeStatus.SUSPECT,
    draining=True,
    load=Load(1, 4, 9),
    version=5,
    coordinated=True,
    labels="a=b",
    fitness=Fitness.UNFIT,
    barred=(NodeId(3),),
    secrets=4,
)
BYTES = "9f07a26e31a27231a3683a31030201c39301040905c3a3613d6202910304"
VECTORS: list[tuple[GossipMessage, str]] = [
    (Ping(ROW, 1), f"943c{BYTES}0190"),
    (Ack(ROW, 1, NodeId(8), (ROW,), 9), f"963d{BYTES}010891{BYTES}09"),
    (PingRequest(ROW, 1, NodeId(8), ()), f"953e{BYTES}010890"),
    (News(ROW), f"933f{BYTES}90"),
    (Table(ROW, (ROW,), more=True), f"9440{BYTES}91{BYTES}c3"),
    (Digests(ROW, (1,) * 32, answer=True, updates=(ROW,)), f"9541{BYTES}dc0020{'01' * 32}c391{BYTES}"),
]


@pytest.mark.parametrize(("message", "text"), VECTORS)
def test_the_bytes_of_a_message_are_frozen(message: GossipMessage, text: str) -> None:
    """Each message has the bytes that it always had, and comes back from them."""
    assert gossip.encode(message).hex() == text
    assert gossip.decode(bytes.fromhex(text)) == message


def test_a_row_may_be_short_and_may_be_long() -> None:
    """Fields that are missing at the end have defaults, and more fields than are known are left out."""
    assert gossip.decode(bytes.fromhex("933f9207a26e3190")) == News(MemberRow(NodeId(7), "n1"))
    before_fitness = bytes.fromhex("933f9c07a26e31a27231a3683a31030201c39301040905c3a3613d6290")
    assert gossip.decode(before_fitness) == News(replace(ROW, fitness=Fitness.FIT, barred=(), secrets=0))
    row = [7, "n1", "", "", 0, 0, 0, False, [], 0, False, "", 0, [], 0, "new"]
    longer = msgspec.msgpack.encode([63, row, [], [], "new"])
    assert gossip.decode(longer) == News(MemberRow(NodeId(7), "n1"))


def plain(**changes: object) -> list[object]:
    """The fields of a row with some of them changed."""
    fields: dict[str, object] = {
        "node": 7, "name": "n1", "rack": "", "address": "", "epoch": 1,
        "incarnation": 0, "status": 0, "draining": False, "load": [0, 0, 0], "version": 0,
        "coordinated": False, "labels": "", "fitness": 0, "barred": [],
        "secrets": 0,
    }  # fmt: skip
    return list((fields | changes).values())


@pytest.mark.parametrize(
    "row",
    [
        plain(node=0),
        plain(node=-1),
        plain(node=2**63),
        plain(name="n" * (limits.NODE_NAME_BYTES_MAX + 1)),
        plain(address="h" * (limits.NODE_ADDRESS_CHARS_MAX + 1)),
        plain(name=b"n1"),
        plain(epoch=-1),
        plain(epoch=limits.EPOCH_MAX + 1),
        plain(incarnation=limits.COUNTER_MAX + 1),
        plain(status=4),
        plain(status="alive"),
        plain(draining=1),
        plain(load=[-1]),
        plain(load=[2**32]),
        plain(version=2**64 - 1),
        plain(coordinated=1),
        plain(fitness=3),
        plain(barred=[0]),
        plain(secrets=2**63),
        plain(barred=[1] * (limits.SCHEDULERS_BARRED_MAX + 1)),
        plain(labels="l" * (limits.NODE_LABELS_CHARS_MAX + 1)),
        [],
        None,
    ],
)
def test_a_row_out_of_bounds_is_no_message(row: object) -> None:
    """Whatever a field cannot be ends the connection of who sent it, with a sentence."""
    assert gossip.decode(msgspec.msgpack.encode([63, plain()])) == News(MemberRow(NodeId(7), "n1", epoch=1))
    for body in ([63, row], [63, plain(), [row]]):
        with pytest.raises(ProtocolError, match="malformed gossip"):
            gossip.decode(msgspec.msgpack.encode(body))


@pytest.mark.parametrize(
    ("tag", "rows"), [(63, limits.GOSSIP_UPDATES_MAX), (64, limits.GOSSIP_TABLE_ROWS_MAX)]
)
def test_messages_are_bounded_by_count(tag: int, rows: int) -> None:
    """As many rows as allowed come through, one more does not."""
    gossip.decode(msgspec.msgpack.encode([tag, plain(), [plain()] * rows]))
    with pytest.raises(ProtocolError):
        gossip.decode(msgspec.msgpack.encode([tag, plain(), [plain()] * (rows + 1)]))


def test_the_largest_table_fits_its_frame() -> None:
    """The longest table with everything at its longest is far below a frame between nodes."""
    top, most, last = 2**63 - 1, 2**32 - 1, limits.COUNTER_MAX
    name = "n" * limits.NODE_NAME_BYTES_MAX
    address = "h" * limits.NODE_ADDRESS_CHARS_MAX
    row = MemberRow(
        NodeId(top), name, name, address, most, last, NodeStatus.LEFT, True, Load(most, most, last), last
    )
    table = Table(row, (row,) * limits.GOSSIP_TABLE_ROWS_MAX)
    assert len(gossip.encode(table)) < limits.FRAME_BYTES_MAX


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x90", b"\x93\x3f", b"\x92\x01\x90", b"\xff" * 64])
def test_bytes_that_are_no_message_are_refused(body: bytes) -> None:
    """Cut short, empty or of an unknown tag: ProtocolError, nothing else."""
    with pytest.raises(ProtocolError):
        gossip.decode(body)

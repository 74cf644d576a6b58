"""The messages between nodes: their page, their frozen bytes, and what is no message."""

import contextlib
import json
import re
import struct
from pathlib import Path

import msgpack  # type: ignore[import-untyped] # the package has no types
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dios import limits
from dios.errors import ProtocolError
from dios.ids import NodeId, TaskId
from dios.wire import dcp, dcp_frames
from dios.wire.codec import DCP_VERSION
from dios.wire.messages import Done
from dios.wire.types import Brand
from tests.support.wire import descriptions as described

PAGE = (
    (Path(__file__).parents[3] / "docs" / "wire-format.md").read_text().partition("\n## Between nodes\n")[2]
)
VECTORS: dict[str, str] = json.loads(Path(__file__).with_name("dcp_vectors.json").read_text())

REQUESTS: tuple[type[msgspec.Struct], ...] = described.members(dcp.RequestBody)
ANSWERS: tuple[type[msgspec.Struct], ...] = tuple(
    kind for kind in described.members(dcp.Answer) if kind.__module__ == dcp.__name__
)
MESSAGES: tuple[type[msgspec.Struct], ...] = (
    *described.members(dcp.Message),
    dcp_frames.Revoked,
    dcp_frames.Resting,
    dcp_frames.Continuing,
    dcp_frames.AuditHeads,
    dcp_frames.Principals,
    dcp_frames.LaterSecrets,
)
PARTS: tuple[type[msgspec.Struct], ...] = (
    dcp.Caller,
    dcp.HeldReference,
    dcp.GroupName,
    dcp.SharedReference,
    dcp.HeldReferences,
    dcp_frames.Envelope,
    dcp_frames.Channel,
)


def message_with(inside: object) -> dcp.Message | dcp_frames.Control:
    """The message that carries a request, an answer, or is one itself."""
    if isinstance(inside, REQUESTS):
        return dcp.Ask(7, 3, inside)  # type: ignore[arg-type] # one of REQUESTS
    if isinstance(inside, ANSWERS):
        return dcp.PeerReply(7, inside)  # type: ignore[arg-type] # one of ANSWERS
    assert isinstance(inside, MESSAGES)
    return inside  # type: ignore[return-value] # one of MESSAGES


def test_every_message_between_nodes_is_on_the_page() -> None:
    """Each message, with its tag, its fields, their bounds and defaults, is a row of docs/wire-format.md."""
    kinds = (*REQUESTS, *ANSWERS, *MESSAGES, *PARTS)
    missing = [row for kind in kinds if (row := described.row(kind)) not in PAGE]
    assert not missing, "bring these rows up to date:\n" + "\n".join(missing)


def test_the_page_has_no_message_that_is_gone() -> None:
    """Every row of the page's tables is a message that there is."""
    rows = {described.row(kind) for kind in (*REQUESTS, *ANSWERS, *MESSAGES, *PARTS)}
    told = {line for line in PAGE.splitlines() if re.match(r"\| (\d+ \| )?[A-Z]\w+ \| \w+: ", line)}
    assert told - rows == set()
    assert len(told) > len(PARTS)


def test_the_page_names_the_version() -> None:
    """The page tells which versions a node of this release speaks."""
    assert f"Version {DCP_VERSION}." in PAGE


@pytest.mark.parametrize("kind", [*REQUESTS, *ANSWERS, *MESSAGES])
def test_the_bytes_between_nodes_never_change(kind: type[msgspec.Struct]) -> None:
    """One message of each kind has the bytes that were frozen, and another encoder makes the same."""
    message = message_with(described.sample_message(kind))
    frame = dcp_frames.encode_frame(message)
    assert frame[4:].hex() == VECTORS.get(kind.__name__), f"{kind.__name__}: freeze it as {frame[4:].hex()}"
    assert struct.unpack_from("<I", frame)[0] == len(frame) - 4
    assert frame[4:] == msgpack.packb([described.plain(message)])
    assert dcp_frames.decode_frame(frame[4:]) == (message, None)


@pytest.mark.parametrize("kind", [*REQUESTS, *ANSWERS, *MESSAGES])
def test_every_message_between_nodes_comes_back(kind: type[msgspec.Struct]) -> None:
    """Any message of each kind, with or without bytes beside it, is equal to itself after its journey."""

    @settings(max_examples=15, deadline=None)
    @given(described.messages_of(kind), st.none() | st.binary(max_size=50))
    def holds(inside: object, beside: bytes | None) -> None:
        message = message_with(inside)
        frame = dcp_frames.encode_frame(message, beside)
        assert dcp_frames.decode_frame(frame[4:]) == (message, beside)

    holds()


@pytest.mark.parametrize("kind", REQUESTS)
def test_a_request_of_an_earlier_release_is_one(kind: type[msgspec.Struct]) -> None:
    """A request without the numbers of those that wait and mandates, which came later, has none."""
    message = message_with(described.sample_message(kind))
    whole = msgpack.unpackb(bytes.fromhex(VECTORS[kind.__name__]))
    assert dcp_frames.decode_frame(msgpack.packb([whole[0][:4]]))[0] == message
    assert whole[0][4:] == [[], None, [], []]


@pytest.mark.parametrize("kind", ANSWERS)
def test_an_answer_of_an_earlier_release_is_one(kind: type[msgspec.Struct]) -> None:
    """An answer without spans, which were added later, has none."""
    message = message_with(described.sample_message(kind))
    whole = msgpack.unpackb(bytes.fromhex(VECTORS[kind.__name__]))
    assert whole[0][3:] == [[]]
    assert dcp_frames.decode_frame(msgpack.packb([whole[0][:3]]))[0] == message


def test_a_later_release_may_add_fields() -> None:
    """Fields behind those that this release knows are left out, in messages and in their parts."""
    body = msgpack.packb([[41, 7, [1, 5, "more"], [], "more"], None, "more"])
    assert dcp_frames.decode_frame(body)[0] == dcp.PeerReply(7, Done(5))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused(body: bytes) -> None:
    """Rubbish raises ProtocolError and nothing else, wherever a node may send it."""
    for decode in (dcp_frames.decode_frame, dcp_frames.decode_channel):
        with contextlib.suppress(ProtocolError):
            decode(body)
    with contextlib.suppress(ProtocolError):
        dcp_frames.decode_head(body[: dcp_frames.HEAD_BYTES].ljust(dcp_frames.HEAD_BYTES, b"\0"))


@pytest.mark.parametrize(
    "principal", ["n1", "node:n1", "uid:", "uid:01", "uid:-1", "uid:1\n", "uid:\u0661", "join"]
)
def test_a_principal_of_another_node_is_a_user_or_nobody(principal: str) -> None:
    """A record of a refusal would otherwise blame whom the other node likes to name, such as a third one."""

    def rows(who: str) -> dcp.Ask:
        return dcp.Ask(7, 3, dcp.Rows(dcp.Caller(TaskId(1), who, "f", Brand.PURE)))

    for allowed in ("", "uid:0", "uid:4294967295"):
        assert dcp_frames.decode_frame(dcp_frames.encode_frame(rows(allowed))[4:])[0] == rows(allowed)
    with pytest.raises(ProtocolError, match="regex"):
        dcp_frames.decode_frame(dcp_frames.encode_frame(rows(principal))[4:])


def test_heads_of_transfers() -> None:
    """A head says how long message and bytes are, within their bounds."""
    most = dcp_frames.Head(10, limits.DCP_RECEIVING_BYTES_MAX)
    head = dcp_frames.encode_head(most)
    assert head.hex() == "647472320a0000000000000001000000"
    assert dcp_frames.decode_head(head) == most
    for wrong in (
        dcp_frames.encode_head(most._replace(size=limits.DCP_RECEIVING_BYTES_MAX + 1)),
        dcp_frames.encode_head(dcp_frames.Head(limits.DCP_MESSAGE_BYTES_MAX + 1, 0)),
        dcp_frames.encode_head(dcp_frames.Head(0, 0)),
        b"dtr1" + head[4:],
    ):
        with pytest.raises(ProtocolError):
            dcp_frames.decode_head(wrong)


def hello(oldest: int, newest: int) -> dcp.PeerHello:
    """What a node says first that speaks these versions."""
    return dcp.PeerHello(oldest, newest, NodeId(1), 1, "other", "", "")


def test_versions_that_nodes_agree_on() -> None:
    """The highest version that both speak counts; with none, the message says both and what to do."""
    assert dcp_frames.version_with(hello(1, DCP_VERSION)) == DCP_VERSION
    assert dcp_frames.version_with(hello(1, DCP_VERSION + 5)) == DCP_VERSION
    with pytest.raises(
        ProtocolError, match=f"other {DCP_VERSION + 1} to {DCP_VERSION + 2}. Update this node"
    ):
        dcp_frames.version_with(hello(DCP_VERSION + 1, DCP_VERSION + 2))


def test_the_version_without_moves_and_devices_is_not_spoken() -> None:
    """A node of version 2 would ignore the devices of a run, so there is no common version with it."""
    with pytest.raises(ProtocolError, match=r"speaks 3 to 8, other 1 to 2\. Update other"):
        dcp_frames.version_with(hello(1, 2))

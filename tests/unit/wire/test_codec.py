import contextlib
import json
import struct
from pathlib import Path

import msgpack  # type: ignore[import-untyped] # the package has no types
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dios import limits
from dios.errors import ProtocolError
from dios.wire import codec, messages
from dios.wire.call_table import CALLS, Route
from dios.wire.types import ObjectType
from tests.support.wire import descriptions as described

VECTORS: dict[str, str] = json.loads(Path(__file__).with_name("vectors.json").read_text())
OLDER: dict[str, str] = json.loads(Path(__file__).with_name("vectors_older.json").read_text())
KINDS: tuple[type[msgspec.Struct], ...] = (
    *described.CALLS,
    *described.RESULTS,
    *described.EVENTS,
    messages.TaskRow,
)


def body_of(frame: bytes) -> bytes:
    """The frame without its length, which is right."""
    assert struct.unpack_from("<I", frame)[0] == len(frame) - 4
    return frame[4:]


def encoded(message: object, seq: int = 7) -> bytes:
    """The body of any message, as its own encoder makes it."""
    if isinstance(message, described.CALLS):
        return body_of(codec.encode_request(seq, message))  # type: ignore[arg-type] # one of CALLS
    if isinstance(message, described.RESULTS):
        return body_of(codec.encode_reply(seq, message))  # type: ignore[arg-type] # one of RESULTS
    if isinstance(message, messages.TaskRow):
        return codec.encode_status(message)
    assert isinstance(message, described.EVENTS)
    return codec.encode_event(message)  # type: ignore[arg-type] # one of EVENTS


def decoded(kind: type[msgspec.Struct], body: bytes) -> object:
    """What its own decoder makes of a body."""
    if kind in described.CALLS:
        request = codec.decode_request(body)
        assert request.seq == 7
        return request.call
    if kind in described.RESULTS:
        reply = codec.decode_reply(body)
        assert reply.seq == 7
        return reply.result
    return codec.decode_status(body) if kind is messages.TaskRow else codec.decode_event(body)


@pytest.mark.parametrize("kind", KINDS)
def test_every_message_comes_back(kind: type[msgspec.Struct]) -> None:
    """Any message of each kind, encoded and decoded, is equal to itself and of its own class."""

    @settings(max_examples=25, deadline=None)
    @given(described.messages_of(kind))
    def holds(message: object) -> None:
        back = decoded(kind, encoded(message))
        assert type(back) is kind
        assert back == message

    holds()


@pytest.mark.parametrize("kind", KINDS)
def test_the_bytes_of_a_message_never_change(kind: type[msgspec.Struct]) -> None:
    """One message of each kind has the bytes that were frozen, and another encoder makes the same."""
    frozen = bytes.fromhex(VECTORS[kind.__name__])
    message = described.sample_message(kind)
    assert encoded(message).hex() == frozen.hex()
    assert decoded(kind, frozen) == message
    whole = described.plain(message)
    if kind in described.CALLS or kind in described.RESULTS:
        whole = [7, whole]
    assert msgpack.unpackb(frozen, strict_map_key=False) == whole
    assert msgpack.packb(whole) == frozen


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.__name__ in OLDER])
def test_a_message_without_the_newest_fields_is_understood(kind: type[msgspec.Struct]) -> None:
    """What was frozen before a message gained fields means the same message, those at their defaults."""
    old = bytes.fromhex(OLDER[kind.__name__])
    message = decoded(kind, old)
    assert type(message) is kind
    assert encoded(message) != old
    assert decoded(kind, encoded(message)) == message


def test_no_call_to_another_node_becomes_longer() -> None:
    """Earlier releases refuse surplus fields of a call, and always get all of them: add a call instead."""
    longer_before = {
        "Copy",
        "Create",
        "Delete",
        "AcquireRead",
        "Govern",
        "ListTasks",
        "NodeInfo",
        "ReadOnce",
        "ReadQueue",
        "Retire",
        "Run",
    }
    forwarded = {kind.__name__ for kind, row in CALLS.items() if row.route is not Route.LOCAL}
    assert OLDER.keys() & forwarded == longer_before


def test_tags_are_unique() -> None:
    """No two messages of one direction share a tag."""
    for kinds in (described.CALLS, described.RESULTS, described.EVENTS):
        tags = [described.tag_of(kind) for kind in kinds]
        assert len(set(tags)) == len(tags)
        assert min(tags) >= 0


# -- what is refused ------------------------------------------------------------------------------
GOOD = [7, [4, 1, 0]]


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b"", "malformed request: .*truncated"),
        (b"\xc1", "malformed request"),
        (msgpack.packb(GOOD)[:-1], "truncated"),
        (msgpack.packb(GOOD) + b"\0", "trailing"),
        (msgpack.packb(None), "Expected `array`, got `None`"),
        (msgpack.packb({"seq": 7}), "Expected `array`, got `object`"),
        (msgpack.packb([7]), "length"),
        (msgpack.packb([*GOOD, 0]), "Expected `bytes | null`, got `int`"),
        (msgpack.packb([*GOOD, bytes(24)]), "length >= 25"),
        (msgpack.packb([*GOOD, bytes(26)]), "length <= 25"),
        (msgpack.packb([*GOOD, bytes(25), 0]), "length"),
        (msgpack.packb([-1, [4, 1, 0]]), "Expected `int` >= 0"),
        (msgpack.packb([2**63, [4, 1, 0]]), "<= 9223372036854775807"),
        (msgpack.packb([7, [99, 1]]), "Invalid value 99"),
        (msgpack.packb([7, ["create", 1]]), "Expected `int`"),
        (msgpack.packb([7, []]), "at least"),
        (msgpack.packb([7, [4]]), "at least"),
        (msgpack.packb([7, [4, 1, 0, 0, 0]]), "at most"),
        (msgpack.packb([7, [4, "1"]]), "Expected `int`, got `str`"),
        (msgpack.packb([7, [4, -1]]), "Expected `int` >= 0"),
        (msgpack.packb([7, [1, 77]]), "Invalid enum value 77"),
        (msgpack.packb([7, [2, bytes(31)]]), "length >= 32"),
        (msgpack.packb([7, [2, bytes(33)]]), "length <= 32"),
        (msgpack.packb([7, [2, bytes(32), 0, 0]]), "Expected `int` >= 1"),
        (msgpack.packb([7, [14, []]]), "length >= 1"),
        (msgpack.packb([7, [21, 1, bytes(limits.INLINE_BYTES_MAX + 1)]]), "length <= "),
        (msgpack.packb([7, [40, []]]), "length >= 1"),
        (msgpack.packb([7, [40, [[40, [[4, 1]]]]]]), "Invalid value 40"),
        (b"\x92\x07\x93\x01\x01\x91\xa1\xff", "malformed request"),
        (b"\x91" * 100_000, "malformed request"),
    ],
)
def test_each_malformed_request_has_its_sentence(body: bytes, fault: str) -> None:
    """Cut, oversized, unknown, surplus or mistyped: refused, with a sentence that names the fault."""
    with pytest.raises(ProtocolError, match=fault):
        codec.decode_request(body)


def test_a_malformed_reply_has_its_sentence() -> None:
    """A client refuses what is no reply."""
    for body in (b"", b"\xc1", msgpack.packb([7, [99]]), msgpack.packb([7, [0, "x", "y"]])):
        with pytest.raises(ProtocolError, match="malformed reply"):
            codec.decode_reply(body)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_refused(body: bytes) -> None:
    """Whatever the bytes, nothing but a request or a ProtocolError comes of them."""
    with contextlib.suppress(ProtocolError):
        assert isinstance(codec.decode_request(body), messages.Request)


@given(st.sampled_from(KINDS[: len(described.CALLS)]), st.data())
def test_a_damaged_request_is_a_request_or_refused(kind: type[msgspec.Struct], data: st.DataObject) -> None:
    """A request in which a byte was changed or after which the end is missing is refused, or another one."""
    body = bytearray(encoded(data.draw(described.messages_of(kind))))
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(body)))
    with contextlib.suppress(ProtocolError):
        assert isinstance(codec.decode_request(body[:cut]), messages.Request)


def test_a_request_over_the_limit_is_never_sent() -> None:
    """What the node would refuse for its size is refused before it is sent."""
    write = messages.WriteOnce(1, bytes(limits.INLINE_BYTES_MAX))
    call = messages.Vector((write,) * (limits.FRAME_BYTES_MAX // limits.INLINE_BYTES_MAX))
    with pytest.raises(ProtocolError, match="is over 262144"):
        codec.encode_request(1, call)


def test_trailing_defaults_may_be_left_out() -> None:
    """A request from a client that does not know the newest fields means their defaults."""
    call = codec.decode_request(msgpack.packb([7, [1, int(ObjectType.SHMEM_BLOB)]])).call
    assert call == messages.Create(ObjectType.SHMEM_BLOB)


# -- frames ---------------------------------------------------------------------------------------
@given(st.lists(st.binary(max_size=300), max_size=8), st.data())
def test_frames_are_found_whatever_the_chunks(bodies: list[bytes], data: st.DataObject) -> None:
    """The bodies come out as they were put in, wherever the stream is cut."""
    stream = b"".join(struct.pack("<I", len(body)) + body for body in bodies)
    splitter = codec.FrameSplitter()
    got: list[bytes] = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        got += splitter.feed(stream[:size])
        stream = stream[size:]
    assert got == bodies
    assert splitter.pending == 0


def test_an_unfinished_frame_is_told() -> None:
    """What has begun and not ended is counted, so that an end in its middle is noticed."""
    splitter = codec.FrameSplitter()
    assert splitter.feed(b"\x05\0\0\0abc") == []
    assert splitter.pending == 7
    assert splitter.feed(b"de") == [b"abcde"]


@pytest.mark.parametrize("before", [b"", b"\x01\0\0\0a", b"\x01"])
def test_a_frame_over_the_limit_is_refused(before: bytes) -> None:
    """A length over the limit is refused before its body comes, wherever in the stream it stands."""
    splitter = codec.FrameSplitter(limit=10)
    header = struct.pack("<I", 11) if before != b"\x01" else b"\0\0\x01"
    with pytest.raises(ProtocolError, match="over the limit of 10"):
        splitter.feed(before + header)
    with pytest.raises(ProtocolError):
        codec.FrameSplitter(limit=10).feed(struct.pack("<I", 11) + bytes(11))

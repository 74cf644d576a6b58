from __future__ import annotations

import subprocess
import sys

import msgpack  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dios.errors import InvalidError, ProtocolError
from dios.lib.jobs import chunks
from dios.lib.jobs.chunks import Key, Tag

KEYS = st.one_of(
    st.lists(st.binary(max_size=12)),
    st.lists(st.text(max_size=12)),
    st.lists(st.integers(-(2**63), 2**63 - 1)),
    st.lists(st.tuples(st.text(max_size=4), st.integers(0, 99))),
)


@given(KEYS, st.integers(1, 5))
def test_pairs_come_back_from_chunks(keys: list[Key], size: int) -> None:
    """Whatever keys and values are put into chunks of any size come back in order."""
    values: list[object] = [[index, None, b"v"] for index in range(len(keys))]
    messages = list(chunks.slices(keys, values, size))
    assert all(chunks.tag_of(message) in {Tag.PAIRS, Tag.TUPLES} for message in messages)
    assert list(chunks.pairs_of(messages)) == list(zip(keys, values, strict=True))


@given(KEYS, st.integers(1, 64))
def test_partitions_divide_the_pairs(keys: list[Key], count: int) -> None:
    """Every pair is in exactly one part, in its order, and equal keys are in the same part."""
    values: list[object] = list(range(len(keys)))
    parts = chunks.partition(keys, values, count)
    assert len(parts) == count
    assert sorted(number for _, numbers in parts for number in numbers if isinstance(number, int)) == values
    homes: dict[Key, int] = {}
    for home, (some, numbers) in enumerate(parts):
        assert [keys[number] for number in numbers if isinstance(number, int)] == some
        for key in some:
            assert homes.setdefault(key, home) == home


@pytest.mark.parametrize("count", [2, 3, 64])
def test_partitions_are_nearly_even(count: int) -> None:
    """Many keys divide evenly, within a quarter."""
    keys: list[Key] = [b"word%d" % number for number in range(20_000)]
    sizes = [len(some) for some, _ in chunks.partition(keys, keys, count)]
    assert max(sizes) < 1.25 * 20_000 / count
    assert min(sizes) > 0.75 * 20_000 / count


def test_partitions_are_the_same_in_every_process() -> None:
    """The home of a key does not depend on the interpreter's hash seed."""
    program = (
        "from dios.lib.jobs.chunks import partition\n"
        "for keys in ([b'a', b'bc', b'def'], ['x', 'y', 'zz'], [1, 2, 3], [('a', 1), ('b', 2), ('c', 3)]):\n"
        "    print(partition(keys, [0, 1, 2], 5))\n"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1


def test_frozen_vectors() -> None:
    """The bytes of each kind of message, which another implementation can read, do not change."""
    assert chunks.encode_open(3, 2).hex() == "9400010302"
    assert chunks.encode_end(7).hex() == "920207"
    assert chunks.encode_pairs([b"a", b"b"], [1, 2]).hex() == "930192c40161c40162920102"
    assert chunks.encode_pairs([("a", 1)], [None]).hex() == "9303919 2a1610191c0".replace(" ", "")
    assert msgpack.unpackb(chunks.encode_pairs(["k"], [{"n": 1.5}])) == [1, ["k"], [{"n": 1.5}]]
    assert chunks.framed(b"xyz").hex() == "0300000078797a"


@pytest.mark.parametrize("key", [object(), 2**70, frozenset({1})])
def test_keys_that_cannot_travel_are_refused(key: Key) -> None:
    """A key or value that MessagePack does not hold is refused before anything is sent."""
    with pytest.raises(InvalidError):
        chunks.encode_pairs([key], [1])
    with pytest.raises(InvalidError):
        next(chunks.slices([key, key], [1, 1]))


def test_mixed_keys_are_refused() -> None:
    """Keys of two types in one job are refused, because equal ones might part."""
    with pytest.raises(InvalidError, match="one type"):
        chunks.partition([b"a", "a"], [1, 1], 2)


@pytest.mark.parametrize(
    "message",
    [b"", b"\x93", b"\x93\x09\x90\x90", b"\x94\x00\x02\x01\x01", b"\x93\x01\x91\xc4"],
)
def test_damaged_messages_are_refused(message: bytes) -> None:
    """Bytes that are no message of a stream raise ProtocolError, whichever way they are read."""
    with pytest.raises(ProtocolError):
        chunks.decode_open(message)
    with pytest.raises(ProtocolError):
        chunks.decode_pairs(message)


def test_columns_must_match() -> None:
    """A chunk with more keys than values is refused."""
    with pytest.raises(ProtocolError, match="match"):
        chunks.decode_pairs(msgpack.packb([1, [b"a", b"b"], [1]]))


@given(st.lists(st.binary(max_size=300), max_size=5))
def test_framed_chunks_come_back(parts: list[bytes]) -> None:
    """Chunks put one after the other into an object come back, and a cut object is refused."""
    whole = b"".join(map(chunks.framed, parts))
    assert [bytes(part) for part in chunks.unframed(memoryview(whole))] == parts
    if parts and parts[-1]:
        with pytest.raises(ProtocolError):
            list(chunks.unframed(memoryview(whole)[:-1]))

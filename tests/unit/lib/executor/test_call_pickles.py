"""The pickles of calls, from which large ``bytes`` objects are taken."""

from __future__ import annotations

import pickle
import random

import pytest

from dios.lib.executor.call_data import BytesFile, NeedsDataError, pickled_function, pickled_small
from dios.lib.executor.call_pickles import CallPickler

LEAST = 64 * 1024


def made_up(rng: random.Random, depth: int = 0) -> object:
    """Return a value that contains bytes of sizes around the bound, also some that look like operations."""
    size = rng.choice((0, 5, 255, 256, LEAST - 1, LEAST, LEAST + 1, 3 * LEAST))
    match rng.randrange(9 if depth < 4 else 5):
        case 0:
            return rng.randbytes(size)
        case 1:
            return bytearray(rng.randbytes(size))
        case 2:
            return "x" * size
        case 3:
            pattern = rng.choice((b"B" + LEAST.to_bytes(4, "little"), b"\x8e" + LEAST.to_bytes(8, "little")))
            return pattern * rng.choice((1, LEAST // len(pattern), LEAST))
        case 4:
            return list(range(rng.choice((0, 3, 30_000))))
        case 5 | 6:
            return [made_up(rng, depth + 1) for _ in range(rng.randrange(6))]
        case 7:
            return tuple(made_up(rng, depth + 1) for _ in range(rng.randrange(6)))
        case _:
            return {number: made_up(rng, depth + 1) for number in range(rng.randrange(6))}


def shape(value: object, large: dict[int, int]) -> object:
    """Return the types in a value with its contents; note the large bytes objects in it."""
    if isinstance(value, bytes | bytearray):
        if len(value) >= LEAST:
            large[id(value)] = len(value)
        return type(value), bytes(value)
    if isinstance(value, list | tuple):
        return type(value), [shape(member, large) for member in value]
    if isinstance(value, dict):
        return type(value), {key: shape(member, large) for key, member in value.items()}
    return type(value), value


@pytest.mark.parametrize("seed", range(12))
def test_large_bytes_are_taken_out_of_any_value(seed: int) -> None:
    """Exactly the large ones are, each once; the value that is loaded has the same types and contents."""
    rng = random.Random(seed)  # noqa: S311 - a test repeats it
    for _ in range(8):
        part = made_up(rng)
        value = [part, made_up(rng), part]
        taken: list[bytes | bytearray] = []
        file = BytesFile(taken.append, bytes_min=LEAST)
        CallPickler(file, lambda _: True).dump(value)
        large: dict[int, int] = {}
        expected = shape(value, large)
        assert [len(buffer) for buffer in taken] == [large[id(buffer)] for buffer in taken]
        assert len(taken) == len(large)
        loaded = pickle.loads(file.getvalue(), buffers=[memoryview(bytes(buffer)) for buffer in taken])  # noqa: S301 - of this test
        assert shape(loaded, {}) == expected
        assert loaded[0] is loaded[2]


def test_large_bytes_are_no_small_value() -> None:
    """In arguments the bound is 64 KiB; in a function, which is sent once, it is 1 MiB."""
    small, large, huge = bytes(LEAST - 1), bytes(LEAST), bytes(16 * LEAST)
    pickled_small([small], "an argument")
    for value in (large, {"key": [bytearray(large)]}, (huge,)):
        with pytest.raises(NeedsDataError):
            pickled_small(value, "an argument")
    pickled_function(lambda: large, "the function")
    with pytest.raises(NeedsDataError):
        pickled_function(lambda: huge, "the function")

from __future__ import annotations

import random

import pytest

from dios.errors import ProtocolError
from dios.lib.executor import frames


@pytest.mark.parametrize("seed", range(20))
def test_frames_are_cut_the_same_however_their_bytes_arrive(seed: int) -> None:
    """Any division of the bytes gives the same frames, empty and long bodies included."""
    rng = random.Random(seed)  # noqa: S311 - a test repeats it
    sent = [(rng.randrange(1, 9), rng.randbytes(rng.choice((0, 1, 4, 5, 1000)))) for _ in range(50)]
    data = b"".join(frames.frame(kind, body) for kind, body in sent)
    buffer = frames.FrameBuffer()
    received = []
    while data:
        size = rng.choice((1, 2, 7, 100, 5000))
        received += [(kind, bytes(body)) for kind, body in buffer.feed(data[:size])]
        data = data[size:]
    assert received == sent


def test_a_frame_that_is_too_long_is_refused_before_its_bytes_are_here() -> None:
    """A hostile length does not make the caller wait for bytes or keep them."""
    with pytest.raises(ProtocolError, match="over"):
        list(frames.FrameBuffer().feed(b"\xff\xff\xff\xff\x06"))


def test_a_body_without_a_number_is_refused() -> None:
    """A short body is an error, not a wrong number."""
    with pytest.raises(ProtocolError, match="no number"):
        frames.numbered(memoryview(b"1234567"))

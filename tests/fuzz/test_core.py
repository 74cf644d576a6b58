"""The codec and the core before the same generator, in process, where hypothesis can shrink what fails."""

from __future__ import annotations

import contextlib
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dios.core.model.invariants import check
from dios.errors import ProtocolError
from dios.wire.codec import FrameSplitter, decode_reply, decode_request, encode_request
from dios.wire.messages import AnyCall, Request
from tests.fuzz.bending import Bent
from tests.fuzz.core_harness import CoreHarness, RandomInputs
from tests.fuzz.frames import Frames, framed
from tests.fuzz.known import Known
from tests.support.wire.descriptions import CALLS, messages_of

CORPUS = sorted((Path(__file__).parent / "corpus").glob("*"))
LONG_SEEDS = 40
LONG_MOVES = 300


def dice(seed: int) -> Random:
    """Dice that fall the same way every time."""
    return Random(seed)  # noqa: S311 - repeatable, nothing secret


@pytest.mark.long
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(st.randoms(use_true_random=False), st.integers(1, 25))
def test_whatever_attackers_say_the_core_answers_and_stays_right(rng: Random, moves: int) -> None:
    """No frame and no word of the host's makes the core raise; after each, every invariant holds."""
    inputs = RandomInputs(rng, checked=True)
    for _ in range(moves):
        inputs.move()


@pytest.mark.parametrize("seed", range(LONG_SEEDS))
def test_long_attacks_leave_the_tables_right(seed: int) -> None:
    """After hundreds of moves of three attackers the core's tables are as they must be."""
    inputs = RandomInputs(dice(seed), checked=False)
    for _ in range(LONG_MOVES):
        inputs.move()
    check(inputs.harness.core.state)


def test_a_script_repeats_itself() -> None:
    """The bytes of an attack do the same to another core: a finding can be kept as a file."""
    inputs = RandomInputs(dice(29), checked=False)
    for _ in range(LONG_MOVES):
        inputs.move()
    again = CoreHarness(checked=False)
    again.feed(bytes(inputs.script))
    assert again.outcomes == inputs.harness.outcomes
    assert len(again.core.state.objects) == len(inputs.harness.core.state.objects) > 10


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=600))
def test_any_bytes_are_inputs(data: bytes) -> None:
    """A core takes any script whatever, and keeps its invariants."""
    CoreHarness(checked=False).feed(data)


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_what_guided_fuzzing_kept(path: Path) -> None:
    """Inputs that reached deep, or once broke something, break nothing."""
    CoreHarness(checked=True).feed(path.read_bytes())


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_decode_or_are_refused(data: bytes) -> None:
    """Decoding arbitrary bytes gives a message or a ProtocolError, nothing else."""
    for decode in (decode_request, decode_reply):
        with contextlib.suppress(ProtocolError):
            decode(data)


@settings(max_examples=200, deadline=None)
@given(st.randoms(use_true_random=False))
def test_bent_frames_are_refused_or_are_messages(rng: Random) -> None:
    """A frame that is wrong in one way is cut, refused with a sentence, or a message after all."""
    data = Bent(rng, Frames(rng, Known(), grave=True)).frame()
    with contextlib.suppress(ProtocolError):
        for body in FrameSplitter().feed(data):
            assert isinstance(decode_request(body), Request)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**63 - 1), st.one_of([messages_of(kind) for kind in CALLS]))
def test_calls_come_out_as_they_went_in(seq: int, call: AnyCall) -> None:
    """Every call survives its way through a frame that is cut anywhere."""
    frame = encode_request(seq, call)
    splitter = FrameSplitter()
    half = len(frame) // 2
    bodies = splitter.feed(frame[:half]) + splitter.feed(frame[half:] + framed(b""))
    assert decode_request(bodies[0]) == Request(seq, call)
    assert bodies[1:] == [b""]

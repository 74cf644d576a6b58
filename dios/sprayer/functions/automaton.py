"""Aho-Corasick automata: built from patterns in Python, advanced over bytes in compiled code.

A complete automaton has one transition for each state and class of bytes, so a byte takes one look-up
whatever the traffic is. Bytes that no pattern has share one class.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from dios.kernels import no_refcount_kernel
from dios.limits import SPRAYER_AUTOMATON_BYTES_MAX
from dios.sprayer.compile.intrinsics import int64, peek8

MATCH: Final = 1 << 31
"""Set in a transition whose target is the end of a pattern."""
_STATE: Final = MATCH - 1


class Automaton(NamedTuple):
    """The tables of an automaton with S states and C classes of bytes; state 0 is the start.

    ``joined`` puts several automata into the same tables, each behind the one before.
    """

    steps: npt.NDArray[np.uint32]
    """(S, C) the next state, with ``MATCH`` if a pattern ends there."""
    classes: npt.NDArray[np.uint8]
    """(256,) the class of each byte; (automata, 256) for joined ones."""
    ends: npt.NDArray[np.int32]
    """(S,) the index of the longest pattern that ends in a state, or -1."""
    shorter: npt.NDArray[np.int32]
    """(S,) the next state in which a shorter pattern ends that also ends here; 0 for none."""
    marked: npt.NDArray[np.uint8]
    """(S,) 1 if any of the patterns that end in a state is marked."""


def joined(automata: Sequence[Automaton]) -> tuple[Automaton, npt.NDArray[np.int64]]:
    """Return the tables of some automata, and the row at which each begins."""
    width = max(automaton.steps.shape[1] for automaton in automata)
    steps = [
        np.pad(automaton.steps, ((0, 0), (0, width - automaton.steps.shape[1]))) for automaton in automata
    ]
    begins = np.cumsum([0, *(len(table) for table in steps)])
    return (
        Automaton(
            np.concatenate(steps),
            np.stack([automaton.classes for automaton in automata]),
            np.concatenate([automaton.ends for automaton in automata]),
            np.concatenate([automaton.shorter for automaton in automata]),
            np.concatenate([automaton.marked for automaton in automata]),
        ),
        begins,
    )


def build_automaton(patterns: Sequence[bytes], marked: Sequence[bool], *, folded: bool) -> Automaton:
    """Return the automaton of patterns that are not empty; with ``folded`` for any case of ASCII letters.

    Raises ``ValueError`` for patterns that are equal, and for tables above ``SPRAYER_AUTOMATON_BYTES_MAX``.
    """
    words = [pattern.lower() if folded else pattern for pattern in patterns]
    used = sorted({byte for word in words for byte in word})
    # Class 255 would not fit next to the class of all other bytes if patterns had all 256 values.
    others = len(used) < 256
    classes = np.zeros(256, np.uint8)
    for place, byte in enumerate(used):
        classes[byte] = place + others
    if folded:
        for byte in range(ord("A"), ord("Z") + 1):
            classes[byte] = classes[byte + 32]
    count, size = 1 + sum(map(len, words)), len(used) + others
    if 4 * count * size > SPRAYER_AUTOMATON_BYTES_MAX:
        raise ValueError(
            f"the patterns need a table of up to {4 * count * size >> 20} MiB, and at most "
            f"{SPRAYER_AUTOMATON_BYTES_MAX >> 20} MiB are allowed; give fewer or shorter patterns"
        )
    branches: list[dict[int, int]] = [{}]
    ends = [-1]
    for index, word in enumerate(words):
        state = 0
        for byte in word:
            step = branches[state].get(int(classes[byte]))
            if step is None:
                step = branches[state][int(classes[byte])] = len(branches)
                branches.append({})
                ends.append(-1)
            state = step
        if ends[state] >= 0:
            raise ValueError(f"patterns {ends[state] + 1} and {index + 1} are equal; give each once")
        ends[state] = index
    return _completed(branches, ends, classes, [bool(mark) for mark in marked])


def _completed(
    branches: Sequence[dict[int, int]], ends: Sequence[int], classes: npt.NDArray[np.uint8], marks: list[bool]
) -> Automaton:
    """Fill in the transitions of each state from those of its longest suffix that is a state."""
    states = len(branches)
    steps = np.zeros((states, int(classes.max()) + 1), np.uint32)
    shorter, suffix = np.zeros(states, np.int32), np.zeros(states, np.int32)
    marked = np.array([end >= 0 and marks[end] for end in ends], np.uint8)
    waiting = deque([0])
    while waiting:
        state = waiting.popleft()
        if state:
            before = int(suffix[state])
            shorter[state] = before if ends[before] >= 0 else shorter[before]
            marked[state] |= marked[before]
            steps[state] = steps[before]
        for kind, step in branches[state].items():
            suffix[step] = steps[state, kind]
            steps[state, kind] = step
            waiting.append(step)
    ended = (np.array(ends) >= 0) | (shorter > 0)
    steps |= np.where(ended[steps], np.uint32(MATCH), np.uint32(0))
    return Automaton(steps, classes, np.array(ends, np.int32), shorter, marked)


@no_refcount_kernel
def advance(
    address: int,
    size: int,
    state: int,
    steps: npt.NDArray[np.uint32],
    classes: npt.NDArray[np.uint8],
) -> tuple[int, int]:
    """Read bytes until a pattern ends; return the number of bytes that were read, and the last step.

    The step is the next state, with ``MATCH`` if a pattern ended at the last byte that was read.
    """
    now = int64(state)
    for at in range(size):
        step = int64(steps[now, classes[peek8(address + at)]])
        if step & MATCH:
            return int64(at + 1), step
        now = step
    return int64(size), now

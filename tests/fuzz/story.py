"""What was sent and answered, so that a finding can be told and replayed on a fresh node.

Not for: repeating a whole campaign, which its seed does. Ids and names are drawn anew by every node: where a
recorded answer had one, the replay puts what the new node answered in its place, in whatever is sent after.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from dios.wire.codec import FrameSplitter

ID_MIN: Final = 2**40
"""Ids are random below 2**63: a smaller number in an answer is none."""


class Entry(NamedTuple):
    """One thing that happened on connection ``who``: ``what`` is open, send, hand, got, shut or close."""

    what: str
    who: int
    data: bytes = b""


class Story:
    """The last rounds of a campaign."""

    def __init__(self, rounds_kept: int = 3) -> None:
        self._kept: Final = rounds_kept
        self._rounds: list[list[Entry]] = [[]]

    def add(self, what: str, who: int, data: bytes = b"") -> None:
        """Note what happened."""
        self._rounds[-1].append(Entry(what, who, data))

    def next_round(self) -> None:
        """Begin a round, and forget the oldest."""
        self._rounds.append([])
        del self._rounds[: -self._kept]

    def write(self, path: Path, **told: object) -> None:
        """Keep it in a file, with what else is ``told`` of the finding."""
        entries = [[one.what, one.who, one.data.hex()] for part in self._rounds for one in part]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**told, "entries": entries}, indent=0) + "\n")


def read_story(path: Path) -> list[Entry]:
    """What a finding's file holds."""
    told = json.loads(path.read_text())
    return [Entry(what, who, bytes.fromhex(data)) for what, who, data in told["entries"]]


def ids_in(body: bytes) -> Iterator[bytes]:
    """Every id and name in an answer, as MessagePack writes it, in their order."""
    try:
        value: object = msgspec.msgpack.decode(body)
    except msgspec.DecodeError:
        return
    todo = [value]
    while todo:
        here = todo.pop()
        if isinstance(here, list):
            todo.extend(reversed(here))
        elif (isinstance(here, int) and here >= ID_MIN) or (isinstance(here, bytes) and len(here) == 32):
            yield msgspec.msgpack.encode(here)


def by_sequence(bodies: list[bytes]) -> dict[int, list[bytes]]:
    """Ids and names of answers, by the sequence number of each."""
    found: dict[int, list[bytes]] = {}
    for body in bodies:
        decoded: object = msgspec.msgpack.decode(body)
        if isinstance(decoded, list) and decoded and isinstance(decoded[0], int):
            found[decoded[0]] = list(ids_in(body))
    return found


class Translation:
    """From a recorded node's ids and names to those of the node of a replay."""

    def __init__(self) -> None:
        self._new: dict[bytes, bytes] = {}
        self._pattern: re.Pattern[bytes] | None = None

    def learn(self, recorded: bytes, got: bytes) -> None:
        """Compare the answers that a connection gave then and now; both are whole frames."""
        now = by_sequence(FrameSplitter(2**32 - 1).feed(got))
        for seq, old in by_sequence(FrameSplitter(2**32 - 1).feed(recorded)).items():
            for before, after in zip(old, now.get(seq, ()), strict=False):
                if len(before) == len(after) and before != after:
                    self._new[before] = after
                    self._pattern = None

    def apply(self, data: bytes) -> bytes:
        """The bytes as they mean the same to the new node."""
        if not self._new:
            return data
        if self._pattern is None:
            self._pattern = re.compile(b"|".join(re.escape(old) for old in self._new))
        return self._pattern.sub(lambda match: self._new[match[0]], data)

"""A record of the sent and received bytes, so that a finding can be replayed on a new node.

Ids and names are random on every node: where a recorded answer had one, the replay puts the answer of the new
node in its place in everything that is sent later. A whole campaign is repeated by its seed.
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
"""Ids are random below 2**63, so a smaller number in an answer is not an id."""


class Entry(NamedTuple):
    """One event on connection ``who``: ``action`` is open, send, hand, got, shut or close."""

    action: str
    who: int
    data: bytes = b""


class Story:
    """The record of the last rounds of a campaign."""

    def __init__(self, rounds_kept: int = 3) -> None:
        self._kept: Final = rounds_kept
        self._rounds: list[list[Entry]] = [[]]

    def add(self, action: str, who: int, data: bytes = b"") -> None:
        """Record an event."""
        self._rounds[-1].append(Entry(action, who, data))

    def next_round(self) -> None:
        """Begin a round, and drop the oldest."""
        self._rounds.append([])
        del self._rounds[: -self._kept]

    def write(self, path: Path, **told: object) -> None:
        """Write the record to a file, with further facts about the finding."""
        entries = [[entry.action, entry.who, entry.data.hex()] for part in self._rounds for entry in part]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**told, "entries": entries}, indent=0) + "\n")


def read_story(path: Path) -> list[Entry]:
    """Return the events in a finding's file."""
    told = json.loads(path.read_text())
    return [Entry(action, who, bytes.fromhex(data)) for action, who, data in told["entries"]]


def ids_in(body: bytes) -> Iterator[bytes]:
    """Yield every id and name in an answer, as MessagePack encodes it, in order."""
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
    """Return ids and names of answers by their sequence numbers."""
    ids_by_sequence: dict[int, list[bytes]] = {}
    for body in bodies:
        decoded: object = msgspec.msgpack.decode(body)
        if isinstance(decoded, list) and decoded and isinstance(decoded[0], int):
            ids_by_sequence[decoded[0]] = list(ids_in(body))
    return ids_by_sequence


class Translation:
    """A mapping from a recorded node's ids and names to those of the replay's node."""

    def __init__(self) -> None:
        self._new: dict[bytes, bytes] = {}
        self._pattern: re.Pattern[bytes] | None = None

    def learn(self, recorded: bytes, got: bytes) -> None:
        """Compare the recorded and the new answers of a connection; both are whole frames."""
        now = by_sequence(FrameSplitter(2**32 - 1).feed(got))
        for seq, old in by_sequence(FrameSplitter(2**32 - 1).feed(recorded)).items():
            for before, after in zip(old, now.get(seq, ()), strict=False):
                if len(before) == len(after) and before != after:
                    self._new[before] = after
                    self._pattern = None

    def apply(self, data: bytes) -> bytes:
        """Return the bytes with the ids and names of the new node."""
        if not self._new:
            return data
        if self._pattern is None:
            self._pattern = re.compile(b"|".join(re.escape(old) for old in self._new))
        return self._pattern.sub(lambda match: self._new[match[0]], data)

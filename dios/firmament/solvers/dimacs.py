"""DIMACS' text format of minimum-cost flow problems: reading and writing columns.

``c`` begins a comment, ``p min V E`` comes first, ``n vertex supply`` names a source or sink, and
``a tail head lower capacity cost`` an arc. Firmament adds a number to both for the type of the vertex or arc,
which is read and not used. Vertices count from 1 in the file and from 0 in the columns. The numbers are
checked by ``problem``.

Firmament also writes changes, after a comment ``c EOI`` at the end of the network: ``x tail head lower
capacity cost type`` and the old cost changes an arc, or removes it if the capacity is 0; ``r vertex`` removes
a vertex with its arcs; and ``n`` and ``a`` add vertices and arcs. The columns are those after all changes. A
removed vertex keeps its number, without supply and arcs.

A file is read in blocks. Lines of arcs in the form in which most programs write them are parsed together;
all others, and all lines of a block with a mistake, one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import numpy as np

from dios.firmament.solvers.columns import Ints
from dios.firmament.solvers.errors import InvalidProblemError
from dios.limits import FLOW_ARCS_MAX, FLOW_LINE_CHARS_MAX, FLOW_VERTICES_MAX

_BLOCK_BYTES: Final = 2**22
_ARC_BYTES: Final = b"a0123456789- \n"
_ARC_WORDS: Final = 6
_CHANGE_WORDS: Final = 8
_DIGITS_MAX: Final = 18
"""Longer numbers are parsed one by one, because they may have more than 64 bits."""


class DimacsColumns(NamedTuple):
    """The six columns of a problem, vertices counted from 0."""

    supply: Ints
    tail: Ints
    head: Ints
    lower: Ints
    capacity: Ints
    cost: Ints


class _ChangedArcs:
    """The arcs of a network that changes: rows of tail, head, lower bound, capacity and cost."""

    def __init__(self, rows: Ints) -> None:
        self._rows: dict[int, list[int]] = {}
        self._of_vertex: dict[int, set[int]] = {}
        self._next = 0
        for row in rows.tolist():
            self.add(row)

    def add(self, row: list[int]) -> None:
        """Add an arc."""
        self._rows[self._next] = row
        for vertex in row[:2]:
            self._of_vertex.setdefault(vertex, set()).add(self._next)
        self._next += 1

    def change(self, row: list[int]) -> int:
        """Change the arc between the ends of ``row``, or remove it; return the number of such arcs."""
        tail, head, _, capacity, _ = row
        both = self._of_vertex.get(tail, set()) & self._of_vertex.get(head, set())
        matches = [number for number in both if self._rows[number][:2] == [tail, head]]
        if len(matches) == 1 and capacity:
            self._rows[matches[0]] = row
        elif len(matches) == 1:
            self._remove(matches[0])
        return len(matches)

    def remove_vertex(self, vertex: int) -> None:
        """Remove the arcs of a vertex."""
        for number in list(self._of_vertex.get(vertex, ())):
            self._remove(number)

    def _remove(self, number: int) -> None:
        for vertex in set(self._rows.pop(number)[:2]):
            self._of_vertex[vertex].discard(number)

    def rows(self) -> Ints:
        """Return the present arcs in the order in which they were added."""
        return np.array(list(self._rows.values()), np.int64).reshape(-1, _ARC_WORDS - 1)


class _DimacsParser:
    """A parser that is given the lines of one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._line = 0
        self._arcs_told = -1
        self._arcs = 0
        self._supply: dict[int, int] = {}
        self._vertices = -1
        self._parts: list[Ints] = []
        self._rows: list[list[int]] = []
        self._changed: _ChangedArcs | None = None

    def _bad(self, message: str) -> InvalidProblemError:
        return InvalidProblemError(f"{self._path}:{self._line}: {message}")

    def _numbers(self, words: list[str], form: str, *, begin: int = 1, typed: bool = False) -> list[int]:
        count = len(form.split())
        if len(words) not in {count, count + typed}:
            raise self._bad(f"a line of {len(words)} words; the form is '{form}'")
        try:
            numbers = [int(word.replace("_", "x")) for word in words[begin:]][: count - begin]
        except ValueError:
            raise self._bad(f"a word that is no whole number; the form is '{form}'") from None
        if any(not -(1 << 63) <= number < 1 << 63 for number in numbers):
            raise self._bad("a number of more than 64 bits")
        return numbers

    def _vertex(self, number: int) -> int:
        if not 1 <= number <= self._vertices:
            raise self._bad(f"vertex {number} is not within 1 to {self._vertices}")
        return number - 1

    def _head_line(self, words: list[str]) -> None:
        if self._vertices >= 0:
            raise self._bad("a second 'p' line")
        if words[1:2] != ["min"]:
            raise self._bad("not a minimum-cost flow problem; the form is 'p min VERTICES ARCS'")
        vertices, arcs = self._numbers(words, "p min VERTICES ARCS", begin=2)
        if not 0 <= vertices <= FLOW_VERTICES_MAX or not 0 <= arcs <= FLOW_ARCS_MAX:
            raise self._bad(
                f"{vertices} vertices and {arcs} arcs; read are {FLOW_VERTICES_MAX} and {FLOW_ARCS_MAX}"
            )
        self._vertices, self._arcs_told = vertices, arcs

    def take(self, block: bytes) -> None:
        """Parse whole lines."""
        if self._changed is not None:
            self._take_lines(block)
            return
        first = 0 if block.startswith(b"a ") else block.find(b"\na ") + 1
        if self._vertices < 0 or first:
            self._take_lines(block[:first] if first else block)
            block = block[first:] if first else b""
        if block and not self._take_arcs(block):
            self._take_lines(block)

    def _take_lines(self, lines: bytes) -> None:
        for line in lines.split(b"\n")[:-1]:
            self._take_line(line)

    def _take_arcs(self, block: bytes) -> bool:
        """Parse a block of nothing but arcs; return False if it is something else, or has a mistake."""
        arcs = _parsed_arcs(block) if self._changed is None else None
        if arcs is None or self._arcs + len(arcs) > self._arcs_told:
            return False
        ends, lower, capacity = arcs[:, :2], arcs[:, 2], arcs[:, 3]
        if ends.min() < 1 or ends.max() > self._vertices or (lower > capacity).any():
            return False
        ends -= 1
        self._finish_rows()
        self._parts.append(arcs)
        self._arcs += len(arcs)
        self._line += len(arcs)
        return True

    def _finish_rows(self) -> None:
        if self._rows:
            self._parts.append(np.array(self._rows, np.int64))
            self._rows.clear()

    def _take_line(self, encoded: bytes) -> None:
        self._line += 1
        if encoded[:2].rstrip() == b"c":
            if self._arcs_told >= 0 and encoded.split() == [b"c", b"EOI"]:
                self._begin_changes()
            return
        if len(encoded) > FLOW_LINE_CHARS_MAX:
            raise self._bad(f"a line of more than {FLOW_LINE_CHARS_MAX} characters")
        try:
            words = encoded.decode("ascii").split()
        except UnicodeDecodeError:
            raise self._bad("it is no text; the lines of DIMACS' format are ASCII") from None
        if not words or words[0] == "c":
            return
        if words[0] == "p":
            self._head_line(words)
        elif self._vertices < 0:
            raise self._bad(f"'{words[0]}' before the 'p' line")
        elif words[0] == "n":
            number, supply = self._numbers(words, "n VERTEX SUPPLY", typed=True)
            if self._changed is not None and self._vertices < number <= FLOW_VERTICES_MAX:
                self._vertices = number
            vertex = self._vertex(number)
            if vertex in self._supply and self._changed is None:
                raise self._bad(f"a second supply for vertex {number}")
            self._supply[vertex] = supply
        elif words[0] == "a":
            row = self._arc(words, "a TAIL HEAD LOWER CAPACITY COST")
            if self._changed is not None:
                self._changed.add(row)
                return
            if self._arcs == self._arcs_told:
                raise self._bad(f"more arcs than the {self._arcs_told} of the 'p' line")
            self._rows.append(row)
            self._arcs += 1
        elif words[0] in {"x", "r"}:
            self._take_change(words)
        else:
            raise self._bad(f"a line that begins with '{words[0][:20]}'; known are c, p, n, a, x and r")

    def _arc(self, words: list[str], form: str) -> list[int]:
        tail, head, lower, capacity, cost = self._numbers(words, form, typed=True)
        if not lower <= capacity:
            raise self._bad(f"lower bound {lower}, capacity {capacity}: lower <= capacity must hold")
        return [self._vertex(tail), self._vertex(head), lower, capacity, cost]

    def _begin_changes(self) -> None:
        if self._changed is None:
            self._check_count()
            self._changed = _ChangedArcs(self._all_parts())
            self._parts.clear()

    def _take_change(self, words: list[str]) -> None:
        self._begin_changes()
        assert self._changed is not None  # noqa: S101 - for the type checker
        if words[0] == "r":
            (number,) = self._numbers(words, "r VERTEX")
            vertex = self._vertex(number)
            self._supply.pop(vertex, None)
            self._changed.remove_vertex(vertex)
            return
        # Firmament appends the type and the old cost, which are not needed.
        row = self._arc(
            words if len(words) < _CHANGE_WORDS else words[:-2], "x TAIL HEAD LOWER CAPACITY COST"
        )
        arc_count = self._changed.change(row)
        if arc_count != 1:
            raise self._bad(
                f"a change of one arc from {row[0] + 1} to {row[1] + 1}, but there are {arc_count}"
            )

    def columns(self) -> DimacsColumns:
        """Return the columns after the last line."""
        if self._vertices < 0:
            raise self._bad("the file ends without a 'p min VERTICES ARCS' line")
        self._check_count()
        supply = np.zeros(self._vertices, np.int64)
        for vertex, amount in self._supply.items():
            supply[vertex] = amount
        arcs = self._all_parts() if self._changed is None else self._changed.rows()
        return DimacsColumns(supply, *(arcs[:, field].copy() for field in range(_ARC_WORDS - 1)))

    def _check_count(self) -> None:
        if self._arcs != self._arcs_told:
            raise self._bad(f"the network ends after {self._arcs} of {self._arcs_told} arcs")

    def _all_parts(self) -> Ints:
        self._finish_rows()
        return np.concatenate([np.zeros((0, _ARC_WORDS - 1), np.int64), *self._parts])


def _parsed_arcs(block: bytes) -> Ints | None:
    """Return the five numbers of each line if all are arcs of single spaces and short numbers, else None."""
    rows = block.count(b"\n")
    if block.translate(None, _ARC_BYTES) or block.count(b"a") != rows:
        return None
    text = np.frombuffer(block, np.uint8)
    gaps = np.flatnonzero(text <= ord(" "))
    if len(gaps) != _ARC_WORDS * rows:
        return None
    # A line has six words, so every sixth gap is the end of a line, if no two gaps are next to each other.
    lengths = np.diff(gaps, prepend=-1) - 1
    ends = gaps[_ARC_WORDS - 1 :: _ARC_WORDS]
    minus = np.flatnonzero(text == ord("-"))
    is_arcs = (
        (text[ends] == ord("\n")).all()
        and (lengths[::_ARC_WORDS] == 1).all()
        and (text[np.append(0, ends[:-1] + 1)] == ord("a")).all()
        and lengths.min() > 0
        and lengths.max() <= _DIGITS_MAX
        # A minus is the first character of a number, and not its last.
        and (text[minus - 1] == ord(" ")).all()
        and (text[minus + 1] >= ord("0")).all()
    )
    if not is_arcs:
        return None
    return np.fromstring(block.replace(b"a ", b""), np.int64, sep=" ").reshape(rows, _ARC_WORDS - 1)


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    """Yield the file in blocks of whole lines; of a comment that is longer than a block only a part."""
    rest = b""
    while data := file.read(_BLOCK_BYTES):
        data = rest + data
        end = data.rfind(b"\n") + 1
        if end:
            yield data[:end]
        rest = data[end:]
        if len(rest) > _BLOCK_BYTES:
            rest = rest[: FLOW_LINE_CHARS_MAX + 1]
    if rest:
        yield rest + b"\n"


def read(path: Path) -> DimacsColumns:
    """Return the columns of a file; :class:`InvalidProblemError` names the file and the wrong line."""
    parser = _DimacsParser(path)
    with path.open("rb") as file:
        for block in _blocks(file):
            parser.take(block)
    return parser.columns()


def write(path: Path, columns: DimacsColumns) -> None:
    """Write the columns in the form in which :func:`read` reads them."""
    with path.open("w", encoding="ascii") as out:
        out.write(f"p min {len(columns.supply)} {len(columns.tail)}\n")
        for vertex in np.flatnonzero(columns.supply):
            out.write(f"n {vertex + 1} {columns.supply[vertex]}\n")
        rows = zip(*(column.tolist() for column in columns[1:]), strict=True)
        out.writelines(f"a {v + 1} {w + 1} {low} {most} {cost}\n" for v, w, low, most, cost in rows)

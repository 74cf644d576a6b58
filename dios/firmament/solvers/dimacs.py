"""DIMACS' text format of minimum-cost flow problems: reading and writing columns.

``c`` begins a comment, ``p min V E`` comes first, ``n vertex supply`` names a source or sink, and
``a tail head lower capacity cost`` an arc. Vertices count from 1 in the file and from 0 in the columns. The
numbers are checked by ``problem``.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from dios.firmament.solvers.columns import Ints
from dios.firmament.solvers.errors import InvalidProblemError
from dios.limits import FLOW_ARCS_MAX, FLOW_LINE_CHARS_MAX, FLOW_VERTICES_MAX


class DimacsColumns(NamedTuple):
    """The six columns of a problem, vertices counted from 0."""

    supply: Ints
    tail: Ints
    head: Ints
    lower: Ints
    capacity: Ints
    cost: Ints


class _DimacsParser:
    """A parser that is given the lines of one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._line = 0
        self._arcs_told = -1
        self._supply: dict[int, int] = {}
        self._arcs: list[tuple[int, int, int, int, int]] = []
        self._vertices = -1

    def _bad(self, message: str) -> InvalidProblemError:
        return InvalidProblemError(f"{self._path}:{self._line}: {message}")

    def _numbers(self, words: list[str], form: str, *, begin: int = 1) -> list[int]:
        if len(words) != len(form.split()):
            raise self._bad(f"a line of {len(words)} words; the form is '{form}'")
        try:
            numbers = [int(word) for word in words[begin:]]
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

    def take(self, line: str) -> None:
        """Parse one line."""
        self._line += 1
        if len(line) > FLOW_LINE_CHARS_MAX:
            raise self._bad(f"a line of more than {FLOW_LINE_CHARS_MAX} characters")
        words = line.split()
        if not words or words[0] == "c":
            return
        if words[0] == "p":
            self._head_line(words)
        elif self._vertices < 0:
            raise self._bad(f"'{words[0]}' before the 'p' line")
        elif words[0] == "n":
            number, supply = self._numbers(words, "n VERTEX SUPPLY")
            vertex = self._vertex(number)
            if vertex in self._supply:
                raise self._bad(f"a second supply for vertex {number}")
            self._supply[vertex] = supply
        elif words[0] == "a":
            tail, head, lower, capacity, cost = self._numbers(words, "a TAIL HEAD LOWER CAPACITY COST")
            if len(self._arcs) == self._arcs_told:
                raise self._bad(f"more arcs than the {self._arcs_told} of the 'p' line")
            if not 0 <= lower <= capacity:
                raise self._bad(f"lower bound {lower}, capacity {capacity}: 0 <= lower <= capacity must hold")
            self._arcs.append((self._vertex(tail), self._vertex(head), lower, capacity, cost))
        else:
            raise self._bad(f"a line that begins with '{words[0][:20]}'; known are c, p, n and a")

    def columns(self) -> DimacsColumns:
        """Return the columns after the last line."""
        if self._vertices < 0:
            raise self._bad("the file ends without a 'p min VERTICES ARCS' line")
        if len(self._arcs) != self._arcs_told:
            raise self._bad(f"the file ends after {len(self._arcs)} of {self._arcs_told} arcs")
        supply = np.zeros(self._vertices, np.int64)
        for vertex, amount in self._supply.items():
            supply[vertex] = amount
        arcs = np.array(self._arcs, np.int64).reshape(len(self._arcs), 5)
        return DimacsColumns(supply, *(arcs[:, field] for field in range(5)))


def read(path: Path) -> DimacsColumns:
    """Return the columns of a file; :class:`InvalidProblemError` names the file and the wrong line."""
    reader = _DimacsParser(path)
    try:
        with path.open(encoding="ascii") as lines:
            while line := lines.readline(FLOW_LINE_CHARS_MAX + 1):
                reader.take(line)
    except UnicodeDecodeError:
        raise InvalidProblemError(f"{path} is no text file in DIMACS' format") from None
    return reader.columns()


def write(path: Path, columns: DimacsColumns) -> None:
    """Write the columns in the form in which :func:`read` reads them."""
    with path.open("w", encoding="ascii") as out:
        out.write(f"p min {len(columns.supply)} {len(columns.tail)}\n")
        for vertex in np.flatnonzero(columns.supply):
            out.write(f"n {vertex + 1} {columns.supply[vertex]}\n")
        rows = zip(*(column.tolist() for column in columns[1:]), strict=True)
        out.writelines(f"a {v + 1} {w + 1} {low} {most} {cost}\n" for v, w, low, most, cost in rows)

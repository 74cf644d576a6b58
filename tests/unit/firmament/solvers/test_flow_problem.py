"""A flow problem takes what makes sense, says what does not, and survives the way through a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import ArrayLike

from dios.firmament.solvers import FlowProblem, InvalidProblemError, dimacs, solve
from dios.limits import FLOW_ARCS_MAX, FLOW_LINE_CHARS_MAX, FLOW_UNBOUNDED, FLOW_VERTICES_MAX, FLOW_VOLUME_MAX
from tests.support.firmament.flow_networks import SHAPES, arcs_of, network, problem_of

FIELDS = ("supply", "tail", "head", "lower", "capacity", "cost")


def columns(**changed: ArrayLike) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.int64]]]:
    """A good problem's columns, but for those given."""
    good: dict[str, ArrayLike] = {
        "supply": [2, 0, -2],
        "tail": [0, 1],
        "head": [1, 2],
        "lower": [0, 1],
        "capacity": [3, 4],
        "cost": [5, -6],
    }
    return {name: np.asarray(column) for name, column in (good | changed).items()}


def same(problem: FlowProblem, other: FlowProblem) -> bool:
    """Return True if two problems have the same columns."""
    return all(np.array_equal(getattr(problem, field), getattr(other, field)) for field in FIELDS)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"head": [1]}, "head has 1 entries, but tail has 2"),
        ({"cost": [[1, 2]]}, "cost has 2 dimensions"),
        ({"tail": [0, 3]}, r"tail\[1\] is 3; there are 3 vertices"),
        ({"head": [-1, 2]}, r"head\[0\] is -1"),
        ({"lower": [0, 5]}, r"lower\[1\] is 5, above capacity\[1\], which is 4"),
        ({"lower": [-(1 << 63), 0]}, r"lower\[0\] is -\d+; it must be at least -\d+"),
        ({"capacity": [3, -4]}, r"capacity\[1\] is -4; it must not be negative"),
        ({"cost": [0, 1 << 59]}, r"cost\[1\] is 576460752303423488; with 3 vertices"),
        ({"cost": [0, -(1 << 63)]}, r"cost\[1\] is -9223372036854775808"),
        ({"cost": [0.5, 1.0]}, "cost holds float64 values; scale and round"),
        ({"cost": [True, False]}, "cost holds bool values"),
        ({"supply": ["a", "b", "c"]}, "supply holds <U1 values"),
        ({"supply": np.array([1 << 70, 0, 0], object)}, "supply holds a value that is no 64-bit number"),
        ({"capacity": np.array([3, 1 << 63], np.uint64)}, r"capacity\[1\] is 9223372036854775808"),
        ({"supply": [FLOW_VOLUME_MAX, 1, 0]}, "supply adds up to .* at 0"),
        ({"supply": [0, -(1 << 63), 0]}, r"demand \(negative supply\) adds up to .* at 1"),
        ({"lower": [FLOW_VOLUME_MAX] * 2, "capacity": [FLOW_UNBOUNDED] * 2}, "lower adds up"),
    ],
)
def test_what_makes_no_sense_is_named(changed: dict[str, ArrayLike], said: str) -> None:
    """Each wrong field is refused with its name, its index and its value."""
    with pytest.raises(InvalidProblemError, match=said):
        FlowProblem(**columns(**changed))


def test_a_problem_keeps_its_own_columns() -> None:
    """Later changes to the caller's arrays change no problem, and a problem's own arrays are read-only."""
    mine = columns()
    problem = FlowProblem(**mine)
    mine["cost"][0] = 77
    assert problem.cost.tolist() == [5, -6]
    with pytest.raises(ValueError, match="read-only"):
        problem.cost[0] = 1


@pytest.mark.parametrize("kind", [np.int8, np.int32, np.uint16, object])
def test_other_whole_numbers_are_converted(kind: type) -> None:
    """Columns of any type of whole numbers become 64-bit ones of the same values."""
    given = columns(supply=[0, 0, 0], cost=[5, 6])
    problem = FlowProblem(**{name: column.astype(kind) for name, column in given.items()})
    assert same(problem, FlowProblem(**given))
    assert problem.cost.dtype == np.int64


@pytest.mark.parametrize("seed", range(2 * len(SHAPES)))
def test_a_problem_survives_the_way_through_a_file(seed: int, tmp_path: Path) -> None:
    """A problem of any shape that is written in DIMACS' format is read back as the same problem."""
    problem = network(seed)
    problem.to_dimacs(tmp_path / "network.min")
    assert same(FlowProblem.from_dimacs(tmp_path / "network.min"), problem), f"seed {seed}"


def test_an_empty_problem_survives_the_way_through_a_file(tmp_path: Path) -> None:
    """No vertices and no arcs are a problem too."""
    problem_of([], []).to_dimacs(tmp_path / "empty.min")
    assert same(FlowProblem.from_dimacs(tmp_path / "empty.min"), problem_of([], []))


def test_comments_and_blank_lines_mean_nothing(tmp_path: Path) -> None:
    """A file of others, with comments and blank lines, is read; vertices count from 1 there."""
    path = tmp_path / "theirs.min"
    path.write_text("c a problem\n\np min 3 2\nn 1 2\nc two\nn 3 -2\na 1 2 0 3 5\na 2 3 1 4 -6\n")
    assert same(FlowProblem.from_dimacs(path), FlowProblem(**columns()))


def test_types_long_comments_and_other_spaces_are_read(tmp_path: Path) -> None:
    """Types of vertices and arcs, comments of any length and letters, tabs, and lines of Windows."""
    path = tmp_path / "theirs.min"
    plain = "p min 3 2\nn 1 2\nn 3 -2\na 1 2 0 3 5\na 2 3 1 4 -6\n"
    comment = "c " + "é" * 2**23 + "\n"
    for text in (
        plain.replace("n 1 2", "n 1 2 7").replace("n 3 -2", "n 3 -2 3"),
        plain.replace("3 5\n", "3 5 0\n"),
        comment + plain,
        plain.replace("a 2 3", comment + "a 2 3"),
        plain + comment[:-1],
        plain.replace("\n", "\r\n"),
        plain.replace(" ", "\t"),
        plain.replace(" ", "  "),
        plain.replace("0 3 5", "0 3 +5"),
        plain.replace("a 1 2 0 3 5", "a 1 2 0 3 000000000000000000005"),
        plain[:-1],
    ):
        path.write_text(text)
        assert same(FlowProblem.from_dimacs(path), FlowProblem(**columns())), text[:100]


@pytest.mark.parametrize("block_bytes", [1, 7, 64, 1000])
def test_the_size_of_blocks_makes_no_difference(
    block_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines that two blocks share are read as others, and so are arcs between comments."""
    problem = network(3)
    path = tmp_path / "network.min"
    problem.to_dimacs(path)
    lines = path.read_text().splitlines(keepends=True)
    half = len(lines) // 2
    lines[half:half] = ["c in between\n"]
    path.write_text("".join(lines))
    monkeypatch.setattr(dimacs, "_BLOCK_BYTES", block_bytes)
    assert same(FlowProblem.from_dimacs(path), problem)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "network.min:0: the file ends without a 'p min"),
        ("c nothing\n", "network.min:1: the file ends without a 'p min"),
        ("n 1 2\n", "network.min:1: 'n' before the 'p' line"),
        ("p max 3 2\n", "network.min:1: not a minimum-cost flow problem"),
        ("p\n", "network.min:1: not a minimum-cost flow problem"),
        ("p min 3\n", "network.min:1: a line of 3 words; the form is 'p min VERTICES ARCS'"),
        ("p min 3 x\n", "network.min:1: a word that is no whole number"),
        ("p min -3 2\n", "network.min:1: -3 vertices and 2 arcs"),
        (f"p min {FLOW_VERTICES_MAX + 1} 0\n", f"network.min:1: {FLOW_VERTICES_MAX + 1} vertices"),
        (f"p min 1 {FLOW_ARCS_MAX + 1}\n", f"1 vertices and {FLOW_ARCS_MAX + 1} arcs"),
        ("p min 3 0\np min 3 0\n", "network.min:2: a second 'p' line"),
        ("p min 3 0\nn 4 1\n", "network.min:2: vertex 4 is not within 1 to 3"),
        ("p min 3 0\nn 0 1\n", "network.min:2: vertex 0 is not within 1 to 3"),
        ("p min 3 0\nn 1 1\nn 1 1\n", "network.min:3: a second supply for vertex 1"),
        ("p min 3 0\nn 1 99999999999999999999\n", "network.min:2: a number of more than 64 bits"),
        ("p min 3 0\na 1 2 0 1 1\n", "network.min:2: more arcs than the 0 of the 'p' line"),
        ("p min 3 2\na 1 2 0 1 1\n", "network.min:2: the network ends after 1 of 2 arcs"),
        ("p min 3 1\na 1 2 0 1\n", "network.min:2: a line of 5 words; the form is 'a TAIL HEAD"),
        ("p min 3 1\na 1 2 0 1 1.5\n", "network.min:2: a word that is no whole number"),
        ("p min 3 1\na 1 2 3 1 1\n", "network.min:2: lower bound 3, capacity 1"),
        ("p min 3 1\na 1 2 3 -1 1\n", "network.min:2: lower bound 3, capacity -1"),
        ("p min 3 1\ny 1 2\n", "network.min:2: a line that begins with 'y'"),
        ("p min 3 1\nx 1 2 0 1 1\n", "network.min:2: the network ends after 0 of 1 arcs"),
        (
            "p min 3 1\na 1 2 0 1 1\nx 2 1 0 1 1\n",
            "network.min:3: a change of one arc from 2 to 1, but there",
        ),
        ("p min 2 2\na 1 2 0 1 1\na 1 2 0 1 1\nx 1 2 0 1 1\n", "from 1 to 2, but there are 2"),
        ("p min 3 0\nx 1 2\n", "network.min:2: a line of 3 words; the form is 'x TAIL HEAD"),
        ("p min 3 0\nr 4\n", "network.min:2: vertex 4 is not within 1 to 3"),
        ("p min 3 0\nr 1 2\n", "network.min:2: a line of 3 words; the form is 'r VERTEX'"),
        (f"n {'1' * FLOW_LINE_CHARS_MAX}\n", "network.min:1: a line of more than"),
        (f"n {'1' * 2**23}", "network.min:1: a line of more than"),
        ("p min 3 1\na 1 2 0 1 1_0\n", "network.min:2: a word that is no whole number"),
        ("p min 30 1\na 1_0 2 0 1 1\n", "network.min:2: a word that is no whole number"),
        ("p min 3 1\na 1 2 0 1 1-\n", "network.min:2: a word that is no whole number"),
        ("p min 3 1\na 1 2 0 1 -\n", "network.min:2: a word that is no whole number"),
        ("p min 3 1\na 1 2 0 1 - 1\n", "network.min:2: a word that is no whole number"),
        ("p min 3 1\na 1 2 0 1 4-1\n", "network.min:2: a word that is no whole number"),
        ("p min 3 1\na 1 2 0 1 99999999999999999999\n", "network.min:2: a number of more than 64 bits"),
        ("p min 3 2\na 1 2 0 1\na 1 2 0 1 1 1 1\n", "network.min:2: a line of 5 words"),
        ("p min 3 2\na 1 2 0 1 1\na 1 4 0 1 1\n", "network.min:3: vertex 4 is not within"),
        ("p min 3 2\na 1 2 0 1 1\n1 2 0 1 1 a\n", "network.min:3: a line that begins with '1'"),
        ("p min 3 0\n\0\0\n", "network.min:2: a line that begins with"),
    ],
)
def test_a_bad_line_is_named(text: str, said: str, tmp_path: Path) -> None:
    """A file that is no problem is refused with its name, the line's number and what is wrong there."""
    path = tmp_path / "network.min"
    path.write_text(text)
    with pytest.raises(InvalidProblemError) as refused:
        FlowProblem.from_dimacs(path)
    assert said in str(refused.value)


def test_changes_after_the_network_are_applied(tmp_path: Path) -> None:
    """Firmament's change lines change, add and remove arcs and vertices; the last state is the problem."""
    path = tmp_path / "changes.min"
    path.write_text(
        "p min 3 3\nn 1 2 1\nn 3 -2 3\na 1 2 0 3 5 0\na 2 3 1 4 -6 0\na 1 3 0 1 1 0\nc EOI\n"
        "x 1 2 1 2 7 0 5\nx 1 3 0 0 0 0 1\nn 5 1 1\na 5 2 0 1 9 0\nn 3 -3 3\nc EOI\n"
        "n 4 2 1\na 4 3 0 2 2\nr 4\nc EOI\nx 5 2 -1 1 8\nx 5 2 -1 1 10\n"
    )
    problem = FlowProblem.from_dimacs(path)
    assert problem.supply.tolist() == [2, 0, -3, 0, 1]
    assert arcs_of(problem) == [(0, 1, 1, 2, 7), (1, 2, 1, 4, -6), (4, 1, -1, 1, 10)]


def test_a_negative_lower_bound_is_read_and_written(tmp_path: Path) -> None:
    """An arc may have a negative lower bound; then flow goes from its head to its tail."""
    path = tmp_path / "both.min"
    path.write_text("p min 2 1\nn 1 -3\nn 2 3\na 1 2 -4 5 2\n")
    problem = FlowProblem.from_dimacs(path)
    solution = solve(problem)
    assert (solution.flow.tolist(), solution.cost) == ([-3], -6)
    problem.to_dimacs(path)
    assert same(FlowProblem.from_dimacs(path), problem)


def test_a_file_of_bytes_is_no_problem(tmp_path: Path) -> None:
    """A file that is no text is refused by its name."""
    path = tmp_path / "network.min"
    path.write_bytes(bytes(range(128, 256)))
    with pytest.raises(InvalidProblemError, match=r"network\.min:1: it is no text"):
        FlowProblem.from_dimacs(path)

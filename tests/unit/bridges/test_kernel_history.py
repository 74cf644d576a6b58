"""The cells that a kernel has run: the latest, a range, and those that match a pattern."""

from __future__ import annotations

from dios.bridges.kernel_history import CELLS_MAX, SESSION, Cell, CellHistory


def numbers(cells: list[Cell]) -> list[int]:
    """Return the numbers of cells."""
    return [cell.number for cell in cells]


def test_former_cells_are_selected() -> None:
    """By their place, by their numbers in the present session, and by their code."""
    history = CellHistory()
    for number, code in enumerate(["x = 1", "x", "y = 2", "x", "print(x)"], 1):
        history.add(Cell(number, code, None))
    assert numbers(history.tail(2)) == [4, 5]
    assert numbers(history.tail(None)) == numbers(history.tail(99)) == [1, 2, 3, 4, 5]
    assert history.tail(0) == []
    assert numbers(history.in_range(0, 2, 4)) == numbers(history.in_range(SESSION, 2, 4)) == [2, 3]
    assert numbers(history.in_range(SESSION, None, None)) == [1, 2, 3, 4, 5]
    assert history.in_range(-1, None, None) == []
    assert numbers(history.search("x*", None, unique=False)) == [1, 2, 4]
    assert numbers(history.search("x*", None, unique=True)) == [1, 4]
    assert numbers(history.search("*x*", 1, unique=False)) == [5]
    assert history.search("X", None, unique=False) == []


def test_the_history_is_bounded() -> None:
    """The oldest cells go."""
    history = CellHistory()
    for number in range(CELLS_MAX + 2):
        history.add(Cell(number, "x", None))
    assert numbers(history.tail(None))[0] == 2

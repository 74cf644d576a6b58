"""Dask's collections whose scheduler is an executor, with the shuffles of ``dios.bridges.dask``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import dios
from tests.support.node.running_node import RunningNode

pytest.importorskip("dask.dataframe", reason="the package dask is not installed")

import dask
import dask.bag as db
import dask.dataframe as dd
import pandas as pd

import dios.bridges.dask

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("default")]

FRAME = pd.DataFrame({"a": range(40), "b": ["x", "y"] * 20, "c": [n % 7 for n in range(40)]})


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """One node for all tests."""
    running = RunningNode(tmp_path_factory.mktemp("dask") / "data", {})
    yield running
    running.stop()


@pytest.fixture(scope="module")
def untrusted(node: RunningNode) -> Iterator[dios.Executor]:
    """An executor that checks results."""
    with dios.Executor(2, node=node.place) as executor:
        yield executor


@pytest.mark.parametrize(
    "ask",
    [
        lambda frame: frame.merge(frame, on="c").sort_values(["a_x", "a_y"]),
        lambda frame: frame.set_index("a").sort_values("c"),
        lambda frame: frame.groupby("b").c.sum(),
        lambda frame: frame.b.value_counts(),
        lambda frame: frame.drop_duplicates("c").sort_values("a"),
        lambda frame: frame.c.nunique(),
    ],
    ids=["merge", "set_index", "groupby", "value_counts", "drop_duplicates", "nunique"],
)
def test_shuffles_of_tables_need_no_trust(untrusted: dios.Executor, ask: Callable[[object], object]) -> None:
    """The parts of tables go from call to call in the memory of the program."""
    with dask.config.set(scheduler=untrusted):
        computed = ask(dd.from_pandas(FRAME, npartitions=4)).compute()  # type: ignore[attr-defined, no-untyped-call]
    expected = ask(FRAME)
    assert str(computed) == str(expected) if isinstance(expected, int) else _rows(computed) == _rows(expected)


def _rows(table: object) -> list[object]:
    """Return the rows of a table or a series, without an index that a merge numbers anew, in some order."""
    rows: list[object] = pd.DataFrame(table).to_numpy().tolist()
    return sorted(rows, key=repr)


def test_bags_may_have_empty_parts(untrusted: dios.Executor) -> None:
    """The calls of their reductions return a class of Dask."""
    bag = db.from_sequence(range(9), npartitions=3)  # type: ignore[no-untyped-call]
    with dask.config.set(scheduler=untrusted):
        assert bag.filter(lambda number: number > 5).reduction(sum, sum).compute() == 21
        assert dict(bag.filter(lambda number: number > 7).frequencies().compute()) == {8: 1}


def test_bags_are_grouped_with_trust(node: RunningNode) -> None:
    """Between its calls there are iterators, which are no results of untrusted workers."""
    bag = db.from_sequence(range(9), npartitions=3)  # type: ignore[no-untyped-call]
    with dios.Executor(2, node=node.place, trust=True) as executor, dask.config.set(scheduler=executor):
        groups = dict(bag.groupby(lambda number: number % 3).compute())
    assert {key: sorted(group) for key, group in groups.items()} == {n: [n, n + 3, n + 6] for n in range(3)}

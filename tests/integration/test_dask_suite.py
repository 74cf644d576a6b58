"""Dask's own tests of its collections, from the installed package, with an executor as their scheduler.

The executor checks results. ``NOT_APPLICABLE`` lists the cases that are left out, with the reasons. Another
test runs these alone, and all of them still fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.node.running_node import RunningNode
from tests.support.published.suites import outcomes_of

pytest.importorskip("dask.dataframe", reason="the package dask is not installed")

pytestmark = [pytest.mark.extended, pytest.mark.timeout(1800)]

_FILES: Final = "its calls read or write files of the machine"
_ITERATORS: Final = "iterators or functions go from call to call, which needs trust"
_SHARED: Final = "calls change an array or a counter of the program, and a worker has its own"
_LOCKS: Final = "it hands locks or iterators to calls"
_DISK: Final = "it asks for a shuffle on the disk, and calls have none"
_TABLES: Final = "dask.dataframe.dask_expr.tests"

NOT_APPLICABLE: Final[dict[str, dict[str, str]]] = {
    "dask.bag.tests.test_bag": {
        **dict.fromkeys(
            (
                "test_bag_groupby_pure_hash",
                "test_bag_groupby_normal_hash",
                *(
                    f"test_bag_groupby_none[{scheduler}-{shuffle}]"
                    for scheduler in ("synchronous", "processes")
                    for shuffle in ("disk", "tasks")
                ),
                *(
                    f"test_bag_groupby_dataclass[{scheduler}-{shuffle}-{field}]"
                    for scheduler in ("synchronous", "processes")
                    for shuffle in ("disk", "tasks")
                    for field in ("none_field", "no_none_fields")
                ),
                "test_groupby",
                "test_groupby_with_indexer",
                "test_groupby_with_npartitions_changed",
                "test_concat_after_map",
                "test_groupby_tasks_2[1000-20-100]",
                "test_groupby_tasks_2[12345-234-1042]",
                "test_groupby_tasks_3",
                "test_msgpack_unicode",
                "test_repeated_groupby",
                "test_from_delayed_iterator",
                "test_bag_with_single_callable",
                "test_reductions_are_lazy",
            ),
            _ITERATORS,
        ),
        **dict.fromkeys(
            (
                "test_read_text",
                "test_read_text_large",
                "test_read_text_encoding",
                "test_read_text_large_gzip",
                "test_to_textfiles[gz-GzipFile]",
                "test_to_textfiles[bz2-BZ2File]",
                "test_to_textfiles[-open]",
                "test_to_textfiles_name_function_preserves_order",
                "test_to_textfiles_name_function_warn",
                "test_to_textfiles_encoding",
                "test_to_textfiles_inputs",
                "test_to_textfiles_endlines",
                "test_to_textfiles_empty_partitions",
                "test_gh715",
                "test_temporary_directory",
                "test_bag_paths",
            ),
            _FILES,
        ),
        "test_take_npartitions_warn": "it expects the warning of a call in the program: a worker shows it",
        "test_to_delayed_optimize_graph": _SHARED,
        "test_repartition_partition_size_complex_dtypes": "it compares lists of arrays, which are equal if"
        " their arrays are the same objects",
        "test_reduction_with_non_comparable_objects": "it returns objects of a class that nobody permitted",
    },
    "dask.tests.test_delayed": {
        "test_delayed_with_namedtuple": "its class is one of a function, which the caller does not find",
        "test_delayed_with_dataclass_with_unset_init_false_field": "a record without a value of a field is"
        " no result",
        "test_traverse_false": _ITERATORS,
    },
    "dask.array.tests.test_array_core": {
        "test_field_access": "an array with fields out of order is no result",
        **dict.fromkeys(
            (
                "test_store_delayed_target",
                "test_store",
                "test_store_regions",
                "test_store_compute_false",
                "test_from_array_getitem[True-True]",
                "test_from_array_getitem[False-True]",
                "test_memmap",
                "test_store_sources_unoptimized_nocompute",
            ),
            _SHARED,
        ),
        **dict.fromkeys(
            (
                "test_store_locks_failure_lock_released",
                "test_store_locks_one_lock_two_stores",
                "test_store_locks_dont_assume_threadsafe",
                "test_store_locks_no_lock",
                "test_store_locks_count_calls[False]",
                "test_store_locks_count_calls[True]",
                "test_from_array_with_lock[True]",
                "test_from_array_with_lock[False]",
            ),
            _LOCKS,
        ),
        "test_to_npy_stack": _FILES,
        "test_binary_operator_delegation": "it needs the plugin pytest-mock",
    },
    f"{_TABLES}.test_merge": {
        **dict.fromkeys(
            (
                f"{test}[disk-{kind}]"
                for test in ("test_merge", "test_join")
                for kind in ("left", "right", "inner", "outer")
            ),
            _DISK,
        ),
        "test_merge_combine_similar[2-3]": "it counts the tasks of a merge by Dask's own way of shuffles",
    },
    f"{_TABLES}.test_shuffle": dict.fromkeys(
        (
            *(f"test_disk_shuffle[{count}-{known}]" for count in (3, 6) for known in (True, False)),
            "test_set_index_npartitions_changes",
        ),
        _DISK,
    ),
    **{
        f"{_TABLES}.test_{topic}": {}
        for topic in ("categorical", "concat", "cumulative", "describe", "quantiles")
    },
}
"""The cases that do not apply, and why, for each module of Dask."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of the runs: one node for all of them."""
    running = RunningNode(tmp_path_factory.mktemp("dask") / "data", {})
    yield {"DIOS_NODE": running.place}
    running.stop()


@pytest.mark.parametrize("module", NOT_APPLICABLE)
def test_collections_compute_on_an_executor(tmp_path: Path, node: dict[str, str], module: str) -> None:
    """All cases that apply pass."""
    left_out = NOT_APPLICABLE[module]
    outcomes = outcomes_of(
        ["--pyargs", module], tmp_path, plugin="dask_plugin", environment=node, without=left_out
    )
    assert not outcomes.failed
    assert len(outcomes.passed) > 2 * len(left_out)


@pytest.mark.parametrize("module", [module for module, cases in NOT_APPLICABLE.items() if cases])
def test_the_cases_that_are_left_out_fail(tmp_path: Path, node: dict[str, str], module: str) -> None:
    """A case that passes belongs to the others."""
    left_out = NOT_APPLICABLE[module]
    outcomes = outcomes_of(
        ["--pyargs", module], tmp_path, plugin="dask_plugin", environment=node, only=left_out
    )
    assert outcomes.failed.keys() == left_out.keys()
    assert not outcomes.passed

"""The options of calls, and the errors of wrong ones."""

from __future__ import annotations

from typing import cast

import pytest

from dios.errors import InvalidError
from dios.lib.executor.call_options import NO_OPTIONS, OptionChanges
from dios.limits import GIB


def test_options_that_are_not_given_stay() -> None:
    """Each change keeps the others."""
    options = NO_OPTIONS.changed({"timeout": 2, "retry_on": [OSError, KeyError], "cpus": 0.0001})
    options = options.changed({"retries": 0, "name": "sums", "memory": "1 GiB"})
    assert (options.timeout_s, options.retries, options.name) == (2.0, 0, "sums")
    assert options.retry_on == (OSError, KeyError)
    assert options.needs == (1, GIB)
    assert options.changed({"retry_on": ValueError}).retry_on == (ValueError,)
    assert options.changed({"retry_on": ()}).retry_on == ()
    assert options.changed(dict.fromkeys(OptionChanges.__annotations__)) == options  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"time": 3}, "unexpected keyword argument 'time'"),
        ({"name": 3}, "name must be a text, not 3"),
        ({"retries": -1}, "retries must be from 0 to .*, and not -1"),
        ({"retries": "3"}, "retries must be from 0 to .*, and not '3'"),
        ({"retry_on": 3}, "retry_on must be a class of exceptions, or several, not 3"),
        ({"retry_on": "OSError"}, "retry_on must be a class of exceptions"),
        ({"retry_on": [OSError, int]}, "retry_on must be a class of exceptions"),
        ({"cpus": 0}, "cpus must be more than 0"),
        ({"cpus": float("nan")}, "cpus must be more than 0"),
        ({"cpus": "2"}, "cpus must be more than 0 .* not '2'"),
        ({"timeout": "2"}, "timeout must be more than 0 .* not '2'"),
        ({"memory": 1.5}, "memory must be a number of bytes, or a size"),
    ],
    ids=str,
)
def test_a_wrong_option_is_named(changes: dict[str, object], message: str) -> None:
    """With its value and what is permitted, also for a value of another type."""
    with pytest.raises((InvalidError, TypeError), match=message):
        NO_OPTIONS.changed(cast("OptionChanges", changes))

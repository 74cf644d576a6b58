"""The needs of a run as a program states them."""

from __future__ import annotations

import pytest

import dios
from dios import limits
from dios.client.ops.scheduling import job_number
from dios.errors import InvalidError


def test_a_name_of_a_job_is_one_number() -> None:
    """The same name always gives the same number, whichever program states it; no name gives none."""
    assert dios.work(job="train").job == job_number("train") == 1197631136823417833
    assert dios.work(job=7).job == 7
    assert (job_number(""), dios.work().job) == (0, 0)


def test_the_bounds_of_a_job_are_sent() -> None:
    """Both bounds are part of the needs of each run."""
    needs = dios.work(job="train", job_minimum=1, job_maximum=4)
    assert (needs.job_minimum, needs.job_maximum) == (1, 4)
    assert needs.choosy
    assert not dios.work(job="train").choosy


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"job_maximum": 2}, "give the runs of the job its name"),
        ({"job": "a", "job_minimum": 3, "job_maximum": 2}, "at most 2 tasks and at least 3"),
        ({"job": "a", "gang": (3, 4), "job_maximum": 2}, "at most 2 tasks and at least 3"),
        ({"job": "a", "job_minimum": -1}, "job_minimum must be from 0"),
        ({"job": "a", "job_maximum": limits.JOB_BOUND_MAX + 1}, "job_maximum must be from 0"),
        ({"job": "a", "job_minimum": 1, "best_effort": True}, "best effort excludes a minimum"),
    ],
)
def test_bounds_that_cannot_hold_are_refused(given: dict[str, object], why: str) -> None:
    """The error names the bound and the reason."""
    with pytest.raises(InvalidError, match=why):
        dios.work(**given)  # type: ignore[arg-type] # a test's

"""The options of `dios run` for runs after others, and the wait of a run that this command holds.

For kept jobs the cluster waits (``dios.lib.supervised``).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from dios import limits
from dios.cli.common.options import Options, option
from dios.cli.common.output import say, waiting
from dios.errors import InvalidError
from dios.lib.supervised.kept_jobs import KeptJobs
from dios.lib.supervised.predecessors import missing_tasks, still_waiting, waiting_text
from dios.lib.supervised.records import Condition, Predecessor

if TYPE_CHECKING:
    from dios.cli.common.context import CommandContext

_LOOK_S: Final = limits.SERVICE_ROUND_MS / 1000


class PredecessorOptions(Options, section="Its turn"):
    """The runs that come before a run."""

    after: list[str] | None = option(
        "--after RUN",
        "Begin when this run has begun: a kept job, SWEEP.7 of an array, a title or a fingerprint.",
    )
    after_ok: list[str] | None = option(
        "--after-ok RUN",
        "Begin when this run has ended with 0; without that it never begins, and ends with 125.",
    )
    after_any: list[str] | None = option(
        "--after-any RUN", "Begin when this run has ended, however it ended."
    )

    def runs(self, place: CommandContext) -> tuple[Predecessor, ...]:
        """Return the runs that the options name. Raise InvalidError if one of them does not exist."""
        words = [(word, Condition.STARTED) for word in self.after or ()]
        words += [(word, Condition.SUCCEEDED) for word in self.after_ok or ()]
        words += [(word, Condition.ENDED) for word in self.after_any or ()]
        return KeptJobs(place.node).named(words) if words else ()


def wait_for_runs(place: CommandContext, label: str, after: tuple[Predecessor, ...]) -> None:
    """Wait until runs have done what they have to. Raise InvalidError if one of them never will."""
    jobs, shown_text, missed = KeptJobs(place.node), "", frozenset[str]()
    while after:
        view = jobs.view(missed)
        outcome, missed = still_waiting(view, after), missing_tasks(view, after)
        if outcome.never:
            raise InvalidError(f"cannot run {label}: {outcome.never}")
        after = outcome.after
        text = waiting_text(after)
        if after and text != shown_text:
            shown_text = text
            say(f"{label} waits for {text}; Ctrl-C withdraws it")
        if after:
            with waiting(f"waiting for {text}"):
                time.sleep(_LOOK_S)

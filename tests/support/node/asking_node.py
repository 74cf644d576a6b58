"""A real node that writes a line for each request to another node on behalf of a task, and for its answer.

Run as a program in place of the daemon, with the file of the lines in the environment. ``rounds_of`` counts
the round trips: the times that a task's requests had to wait for earlier answers.
"""

from __future__ import annotations

import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Final, ParamSpec

from dios.core.remote import requests
from dios.core.remote.peers import PendingRequest
from dios.node import daemon

P = ParamSpec("P")

LINES: Final = "TEST_REQUEST_LINES"
_ASKED: Final = "asked"
_ANSWERED: Final = "answered"


def rounds_of(lines: Path) -> Counter[int]:
    """Return the number of round trips between nodes that the calls of each task took so far."""
    events: defaultdict[int, list[str]] = defaultdict(list)
    for line in lines.read_text().splitlines():
        event, task = line.split()
        events[int(task)].append(event)
    return Counter(
        {
            task: sum(event == _ASKED for event, _ in groupby(task_events))
            for task, task_events in events.items()
        }
    )


def _noted(event: str, function: Callable[P, None]) -> Callable[P, None]:
    def noting(*arguments: P.args, **named: P.kwargs) -> None:
        (request,) = (argument for argument in arguments if isinstance(argument, PendingRequest))
        caller = getattr(request.body, "caller", None)
        if caller is not None:
            with Path(os.environ[LINES]).open("a") as file:
                file.write(f"{event} {caller.task}\n")
        function(*arguments, **named)

    return noting


def main() -> int:
    """Run the daemon."""
    for event, name in ((_ASKED, "_open"), (_ANSWERED, "_finish")):
        setattr(requests, name, _noted(event, vars(requests)[name]))
    return daemon.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())

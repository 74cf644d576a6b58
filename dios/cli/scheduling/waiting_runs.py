"""Why a run waits, in one line, from its node's start queue or from the coordinator, like `dios explain`."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Final

from dios.cli.common.context import CommandContext
from dios.cli.common.output import say
from dios.cli.scheduling import start_queues
from dios.cli.scheduling.live import ask_at, rows_of
from dios.client.ops.status import Status
from dios.errors import DiosError
from dios.wire.types import TaskState

FIRST_S: Final = 2.0
"""The seconds before the first question; most runs start earlier."""

_LONGEST_S: Final = 60.0
_LINES: Final = 2


def waiting_reason(place: CommandContext, tasks: Sequence[Status], task: Status) -> str:
    """Return why a task of ``tasks`` waits, in one line."""
    try:
        explained = start_queues.explanation(tasks, task.fingerprint) or ask_at(
            place, {"ask": "explain", "task": task.fingerprint}
        )
    except DiosError as error:
        return error.message
    explanation = explained.get("explanation")
    if isinstance(explanation, dict):
        # Of the flow scheduler, whose lines begin with paths and costs.
        excluded, total = rows_of(explanation, "excluded"), explanation.get("total_machines")
        reason = str(explanation.get("reason", ""))
        others = [
            f"{row.get('machines')} of {total} machines: {row.get('reason')}"
            for row in excluded
            if str(row.get("reason")) not in reason
        ]
        binding = [] if excluded else [str(explanation.get("binding", ""))]
        changes = [
            str(row.get("text")) for row in rows_of(explanation, "counterfactuals") if row.get("amounts")
        ]
        parts = [reason, *others, *binding, str(explanation.get("promised", "")), *changes[:1]]
        return "; ".join(part for part in parts if part)
    lines = explained.get("lines")
    texts = [str(line).strip() for line in lines[:_LINES]] if isinstance(lines, list) else []
    if texts and " waits" in texts[0]:
        # The line begins with the name of the task.
        texts[0] = texts[0].partition(" waits")[2].removeprefix(":").strip()
    return "; ".join(texts)


@contextlib.contextmanager
def telling_why(
    open_place: Callable[[], AbstractContextManager[CommandContext]], label: str
) -> Iterator[None]:
    """Say why the runs called ``label`` wait while the body does, and again when that changes."""
    over = threading.Event()

    def watch() -> None:
        pause_s, told = FIRST_S, ""
        while not over.wait(pause_s):
            pause_s = min(2 * pause_s, _LONGEST_S)
            try:
                with open_place() as place:
                    tasks = place.node.tasks()
                    waiting = [
                        task for task in tasks if task.state is TaskState.WAITING and task.label == label
                    ]
                    if not waiting:
                        continue
                    reason = waiting_reason(place, tasks, waiting[-1])
            except (DiosError, OSError) as error:
                reason = f"its reason is unknown: {error}"
            if reason != told and not over.is_set():
                more = "" if told else f" (`dios explain {label}` shows more; Ctrl-C withdraws it)"
                say(f"{label} waits: {reason}{more}")
                told = reason

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()

"""The sandboxes on the node of a person, as another program of theirs sees them."""

from __future__ import annotations

import dios
from dios.errors import TimeLimitError
from tests.support.node.command_user import Person


def sandboxes(person: Person) -> int:
    """Return the number of sandboxes on the person's node ``node0``."""
    with dios.connect(person.home / "node0") as node:
        return len(_running(node))


def has_printed(person: Person, text: bytes) -> bool:
    """Return True if the code in the latest sandbox has written a text past Python, with ``os.write``."""
    with dios.connect(person.home / "node0") as node:
        name = _running(node)[-1].name
        task = None if name is None else node.find(name)
        assert isinstance(task, dios.Task)
        try:
            return text in task.console().receive(timeout=0)
        except TimeLimitError:
            return False


def _running(node: dios.Node) -> list[dios.Status]:
    return [status for status in node.tasks() if status.label == "sandbox" and not status.ended]

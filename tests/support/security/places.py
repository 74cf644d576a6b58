"""The places in which a hostile pair makes its calls: a plain task, and the sessions of sandboxes.

``hostile_pair`` gives the orders. A session carries each of them out as a call of a function, over streams,
so that the node hears the ordered frames alone there, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Protocol
from unittest.mock import patch

import capability_puppet as inside
import pytest

import dios
from dios.client.sync.node import Group, Node, Reference, Task
from dios.errors import EndOfStreamError
from dios.host.confinement.mechanisms import probe
from dios.host.confinement.notifications import FORKS
from dios.lib.sandbox.errors import SandboxEndedError

PROGRAM: Final = b"import capability_puppet\ncapability_puppet.main()\n"
WAIT_S: Final = 30.0
TEMPLATE: Final = "caged"
TEMPLATES: Final = f"{TEMPLATE}=colorsys"
"""A setting of the nodes that have the template."""
_SOURCE: Final = Path(inside.__file__)
_LOAD: Final = f"""
import sys, types
capability_puppet = sys.modules["capability_puppet"] = types.ModuleType("capability_puppet")
exec(compile({_SOURCE.read_text()!r}, "capability_puppet.py", "exec"), capability_puppet.__dict__)
"""
_BEGIN: Final = "hands = capability_puppet.Hands()\nwelcome, obey = hands.welcome, hands.obey"


class GoneError(Exception):
    """The task does not obey any more."""


class Hands(Protocol):
    """One task that carries out orders."""

    task: Task
    """Its task, which outlives the streams over which it gets its orders."""

    def first(self) -> bytes:
        """Return what the node told the task at its start."""

    def order(self, order: bytes) -> None:
        """Order something, and wait for nothing."""

    def answer(self) -> bytes:
        """Return the next answer; raise GoneError if there is none."""

    def end(self) -> None:
        """End the task."""


class TaskHands:
    """A plain pure task."""

    def __init__(self, node: Node, program: Reference, name: str, groups: Iterable[Group]) -> None:
        self._orders = node.create_stream()
        self._answers = node.create_stream()
        self.task: Task = node.run(
            program,
            groups=groups,
            inputs={"orders": self._orders.restrict("read")},
            outputs={"answers": self._answers.restrict("write")},
            label=name,
        )

    def first(self) -> bytes:
        """See Hands."""
        self.order(b"welcome")
        return self.answer()

    def order(self, order: bytes) -> None:
        """See Hands."""
        self._orders.send(order, WAIT_S)

    def answer(self) -> bytes:
        """See Hands."""
        try:
            return self._answers.receive(WAIT_S)
        except EndOfStreamError:
            self.task.wait(timeout=WAIT_S)
            raise GoneError from None

    def end(self) -> None:
        """See Hands."""
        self.task.kill()
        self.task.wait(timeout=WAIT_S)
        for handle in (self.task, self._orders, self._answers):
            handle.close()


class SessionHands:
    """A session of a sandbox."""

    def __init__(self, box: dios.Sandbox, *others: dios.Sandbox) -> None:
        self._boxes = (box, *others)
        link = box._link
        assert link is not None
        assert link.task is not None
        self.task: Task = link.task
        # The session would close it at its end, and the tests ask it afterwards.
        link._opened[:] = [task for task in link._opened if task is not self.task]
        # An order may be waited for while another puppet has one.
        self._pool = ThreadPoolExecutor(1)
        self._due: deque[Future[object]] = deque()
        assert box.run(_BEGIN).ok

    def first(self) -> bytes:
        """See Hands."""
        return _bytes(self._boxes[0].call("welcome"))

    def order(self, order: bytes) -> None:
        """See Hands."""
        done = self._pool.submit(self._boxes[0].call, "obey", order)
        if order[:4] != inside.SEND:
            self._due.append(done)

    def answer(self) -> bytes:
        """See Hands."""
        try:
            return _bytes(self._due.popleft().result(WAIT_S))
        except SandboxEndedError:
            self.task.wait(timeout=WAIT_S)
            raise GoneError from None

    def end(self) -> None:
        """See Hands."""
        self.task.kill()
        self._pool.shutdown()
        self.task.wait(timeout=WAIT_S)
        self.task.close()
        for box in self._boxes:
            box.close()


def _bytes(value: object) -> bytes:
    assert isinstance(value, bytes)
    return value


class Place(NamedTuple):
    """Where all puppets of a stage are; ``is_session`` is False for plain tasks."""

    name: str
    template: str = ""
    is_session: bool = True
    is_reset: bool = False
    is_fork: bool = False

    @property
    def settings(self) -> dict[str, str]:
        """The settings of a node with this place."""
        return {"templates": TEMPLATES} if self.template else {}

    def open(self, node: Node, name: str, groups: tuple[Group, ...]) -> Hands:
        """Start what carries out orders, a member of an empty group of its own, or of ``groups``."""
        if not self.is_session:
            sources = {"capability_puppet": _SOURCE}
            with node.create_program(PROGRAM, modules=sources) as program:
                return TaskHands(node, program, name, groups)
        with ExitStack() as stack:
            # A sandbox has no argument for groups: nobody else is to see what its code makes.
            stack.enter_context(patch.object(node, "run_op", partial(node.run_op, groups=groups)))
            box = dios.Sandbox(node=node, template=self.template, timeout=WAIT_S, forkable=self.is_fork)
            assert box.run("before = 1").ok
            if self.is_reset:
                box.reset()
            assert box.run(_LOAD).ok
            boxes = (box.fork(), box) if self.is_fork else (box,)
        return SessionHands(*boxes)


TASK: Final = Place("task", is_session=False)
SESSION: Final = Place("session")
RESET: Final = Place("after-reset", is_reset=True)
FORK: Final = Place("fork", is_fork=True)
FROM_TEMPLATE: Final = Place("of-a-template", template=TEMPLATE)
FORK_FROM_TEMPLATE: Final = Place("fork-of-a-template", template=TEMPLATE, is_fork=True)
SESSIONS: Final = (SESSION, RESET, FORK, FROM_TEMPLATE, FORK_FROM_TEMPLATE)
PLACES: Final = (TASK, *(pytest.param(place, marks=pytest.mark.extended) for place in SESSIONS))
"""Parameters of a fixture; the short run has plain tasks."""


def require(place: Place) -> None:
    """Skip where the machine does not have this place."""
    if place.is_fork:
        listeners = probe()[FORKS]
        if not listeners.available:
            pytest.skip(f"sessions cannot be forked here: {listeners.detail}")

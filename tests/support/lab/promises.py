"""What a cluster told its clients in the lab, and whether it keeps its word afterwards.

Not for: causing faults (``lab_rig``). An answer is one of three: done, "I cannot reach it", or "the disk is
full". Anything else, and silence, is a failure.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import dios
from dios.errors import NoSpaceError
from tests.support.lab.daemons import ANSWER_SECONDS, person, within
from tests.support.lab.machines import Lab, Machine
from tests.support.node.running_node import wait_until

LARGE: Final = 300_000
"""More than fits in a message: such bytes take the data connections."""
CONVERGE_SECONDS: Final = 60.0


class Answer(enum.Enum):
    """How a call ended."""

    DONE = enum.auto()
    UNREACHABLE = enum.auto()
    FULL = enum.auto()


@dataclass(frozen=True, slots=True)
class Kept:
    """An object that a node said it keeps."""

    home: str
    name: bytes
    content: bytes


class Ledger:
    """Creates objects anywhere in a lab, remembers which were acknowledged, and looks for all of them."""

    def __init__(self, lab: Lab) -> None:
        self._lab: Final = lab
        self._made = 0
        self.kept: Final[list[Kept]] = []
        self.baseline: Final = {machine.name: references(machine) for machine in lab.nodes}

    def creates(self, session: dios.Node, home: Machine, size: int = 100) -> Answer:
        """Create a durable object on ``home`` through a session anywhere."""
        assert session.home is not None
        self._made += 1
        content = (f"{home.name} {self._made} ".encode() * (size // 8 + 1))[:size]
        group = session.home

        def create() -> bytes:
            with session.create(dios.DURABLE_BLOB, groups=[group], data=content, host=home.name) as handle:
                assert handle.name is not None
                return handle.name

        try:
            name = within(ANSWER_SECONDS, create)
        except (dios.UnreachableError, dios.TimeLimitError):
            return Answer.UNREACHABLE
        except NoSpaceError:
            return Answer.FULL
        self.kept.append(Kept(home.name, name, content))
        return Answer.DONE

    def reads(self, session: dios.Node, kept: Kept) -> Answer:
        """Find an object by its name and read it, whole; AssertionError when it is another one's bytes."""

        def read() -> bytes | None:
            handles = session.lookup(kept.name, group=session.home)
            try:
                return handles[0].read_bytes() if handles else None
            finally:
                for handle in handles:
                    handle.close()

        try:
            content = within(ANSWER_SECONDS, read)
        except (dios.UnreachableError, dios.TimeLimitError, dios.StaleError):
            return Answer.UNREACHABLE
        if content is None:
            return Answer.UNREACHABLE
        assert content == kept.content, f"{len(content)} other bytes than {kept.home} acknowledged"
        return Answer.DONE

    def one_of(self, home: Machine) -> Kept:
        """An object that a node keeps."""
        return next(kept for kept in self.kept if kept.home == home.name)

    def fill(self, size: int = 100) -> None:
        """Create an object on each node, from each node."""
        for machine in self._lab.nodes:
            with person(machine) as session:
                for home in self._lab.nodes:
                    assert self.creates(session, home, size) is Answer.DONE, f"{machine.name} on {home.name}"

    def wait_all_there(self, machines: Sequence[Machine] = ()) -> None:
        """Wait until each of the nodes, by default all, reads every object that was ever acknowledged."""
        for machine in machines or self._lab.nodes:
            with person(machine) as session:
                for kept in self.kept:
                    wait_until(
                        lambda kept=kept, session=session: self.reads(session, kept) is Answer.DONE,
                        f"{machine.name} reads what {kept.home} acknowledged",
                        CONVERGE_SECONDS,
                    )

    def wait_references_agree(self) -> None:
        """Wait until every node holds as many references as before the first client came."""

        def settled() -> bool:
            return all(references(machine) == self.baseline[machine.name] for machine in self._lab.nodes)

        try:
            wait_until(settled, "references are counted as before", CONVERGE_SECONDS)
        except AssertionError:
            now = {machine.name: references(machine) for machine in self._lab.nodes}
            raise AssertionError(f"references before any client {self.baseline}, now {now}") from None


def references(machine: Machine) -> int:
    """How many references all tasks of a node hold, those of this question included."""
    with person(machine) as session:
        return within(ANSWER_SECONDS, session.info).counts["references"]

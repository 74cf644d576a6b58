"""Kept replicas on four nodes in two racks: a rack is cut off, and a node is lost for ever."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest

from tests.support.lab.daemons import DaemonProgram, clusters_are_here, logs, wait_agreement
from tests.support.lab.machines import Lab, Machine
from tests.support.lab.namespaces import NotHereError
from tests.support.node.command_user import Person
from tests.support.node.running_node import wait_until

PATIENCE_S: Final = 120
DISK_BYTES: Final = 96 << 20


class PromiseRow(msgspec.Struct):
    """A promise as `dios group describe --json` shows it."""

    objects: int
    short: int
    checked: bool


class ShortRow(msgspec.Struct):
    """An object that is short of its promise, or in conflict."""

    conflict: list[str]


class GroupRow(msgspec.Struct):
    """A group with its promise."""

    promise: PromiseRow
    short: list[ShortRow]


class ReplicaRow(msgspec.Struct):
    """A replica of an object."""

    node: str


class ObjectRow(msgspec.Struct):
    """An object as `dios stat --json` shows it."""

    replicas: list[ReplicaRow]


class Keeping:
    """A user of the lab who has one keyring, and goes to any machine."""

    def __init__(self, lab: Lab, home: Path) -> None:
        home.mkdir()
        self.lab = lab
        self.person = Person(home)
        self.files: dict[str, str] = {}

    def types(self, machine: Machine, command: str) -> str:
        """Type a command that succeeds, on a machine."""
        self.person.environment["DIOS_NODE"] = str(machine.socket)
        return self.person.types(command).stdout

    def puts(self, machine: Machine, file: str, *, disks: int = 2) -> None:
        """Put a file, acknowledged by a number of disks."""
        self.person.writes(file, f"bytes of {file}")
        self.types(machine, f"dios put {file} --group papers --acknowledge {disks}")
        self.files[file] = f"bytes of {file}"

    def waits(self, machine: Machine, holds: Callable[[GroupRow], bool], description: str) -> None:
        """Wait until the group has a state, as a machine's node knows it."""
        seen: list[GroupRow | str] = []

        def now() -> bool:
            try:
                told = self.types(machine, "dios group describe papers --json")
            except AssertionError as error:
                seen.append(str(error))
                return False
            row = msgspec.json.decode(told, type=GroupRow)
            seen.append(row)
            return holds(row)

        try:
            wait_until(now, description, PATIENCE_S)
        except AssertionError:
            raise AssertionError(f"not on {machine.name}: {description}; it shows {seen[-1]}") from None

    def is_kept(self, group_row: GroupRow) -> bool:
        """Return True if the promise holds for all files and their list."""
        promise = group_row.promise
        return promise.checked and promise.short == 0 and promise.objects == len(self.files) + 1

    def nodes_of(self, machine: Machine, file: str) -> list[str]:
        """The nodes with a replica of a file."""
        told = self.types(machine, f"dios stat {file} --json")
        return sorted(replica.node for replica in msgspec.json.decode(told, type=ObjectRow).replicas)

    def wait_spread(self, machine: Machine, *lost: Machine) -> None:
        """Wait until each file is on two nodes in different racks, none of them lost, and has its bytes."""
        racks = {node.name: node.rack for node in self.lab.nodes if node not in lost}
        seen: dict[str, list[str]] = {}

        def now() -> bool:
            seen.update({file: self.nodes_of(machine, file) for file in self.files})
            return all(
                len(nodes) == 2 and {racks.get(node) for node in nodes} == {"r1", "r2"}
                for nodes in seen.values()
            )

        try:
            wait_until(now, "two replicas of each file, in different racks", PATIENCE_S)
        except AssertionError as error:
            raise AssertionError(f"{error}: {seen}") from None
        for file, text in self.files.items():
            assert self.types(machine, f"dios get {file}") == text


@pytest.fixture
def keeping(tmp_path: Path) -> Iterator[Keeping]:
    """Four nodes in two racks, which make lost replicas again after two seconds."""
    program = DaemonProgram(**{"replica-grace": "2s", "coordinator": "off", "pool-size": "0"})
    try:
        clusters_are_here()
        lab = Lab(tmp_path, program, 4, disk_bytes=DISK_BYTES)
    except NotHereError as error:
        pytest.skip(str(error))
    with lab:
        try:
            lab.start()
            wait_agreement(lab)
            yield Keeping(lab, tmp_path / "person")
        except BaseException:
            print(logs(lab))  # noqa: T201 - pytest shows it with the failure
            raise


def cut_racks(lab: Lab) -> None:
    """Cut the two racks off from each other."""
    for node in lab.nodes:
        for other in lab.nodes:
            if node.rack < other.rack:
                lab.cut(node, other)


@pytest.mark.timeout(900)
@pytest.mark.extended
def test_a_rack_cut_off_and_a_node_lost_for_ever_lose_nothing(keeping: Keeping) -> None:
    """Both sides keep the number; healed it is exact again; a lost node's replicas are made elsewhere."""
    lab = keeping.lab
    first, second, third, _ = lab.nodes
    keeping.types(first, "dios group create papers")
    keeping.puts(first, "a.txt")
    keeping.types(first, "dios group set papers --replicas 2 --apart rack")
    keeping.puts(third, "b.txt")
    keeping.waits(first, keeping.is_kept, "two replicas of each file and of their list")
    keeping.wait_spread(first)

    cut_racks(lab)
    for side in (first, second):
        keeping.waits(side, keeping.is_kept, "the promise is kept in one rack")
    keeping.puts(second, "c.txt")
    lab.heal()
    wait_agreement(lab)
    keeping.waits(first, keeping.is_kept, "the promise is kept again")
    keeping.wait_spread(first)

    lab.kill(third)
    keeping.waits(first, keeping.is_kept, "the promise is kept without a node")
    keeping.puts(second, "d.txt")
    keeping.waits(second, keeping.is_kept, "the promise is kept without a node")
    keeping.wait_spread(second, third)


@pytest.mark.timeout(900)
@pytest.mark.extended
def test_two_lists_that_were_written_apart_are_shown_as_a_conflict(keeping: Keeping) -> None:
    """Each rack puts a file while it is cut off. A later put settles nothing in silence."""
    lab = keeping.lab
    first, second, _, _ = lab.nodes
    keeping.types(first, "dios group create papers")
    keeping.puts(first, "a.txt")
    keeping.types(first, "dios group set papers --replicas 2 --apart rack")
    keeping.waits(first, keeping.is_kept, "two replicas of each file and of their list")
    cut_racks(lab)
    for side in (first, second):
        keeping.waits(side, keeping.is_kept, "the promise is kept in one rack")
    keeping.puts(first, "here.txt", disks=1)
    keeping.puts(second, "there.txt", disks=1)
    lab.heal()
    wait_agreement(lab)

    def conflicts(group_row: GroupRow) -> bool:
        return any(shortage.conflict for shortage in group_row.short)

    keeping.waits(first, conflicts, "the conflict is shown")
    keeping.puts(first, "later.txt", disks=1)
    keeping.waits(first, conflicts, "the conflict is still shown")

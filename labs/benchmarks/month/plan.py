"""The days of the month: each event, and the commands that a person types for it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from labs.benchmarks.month.site import SMALL_DISK, Site
from labs.benchmarks.month.work import Users, digest_of

DAYS: Final = 30
WHOLE_S: Final = 300.0
"""The time within which replicas are made again."""


class Row(NamedTuple):
    """A line of the timeline. ``commands`` were typed by a person, at most so many on one machine."""

    day: float
    event: str
    commands: int
    on_one_machine: int
    whole_s: float | None
    note: str = ""


@dataclass(slots=True)
class Month:
    """A month in progress."""

    site: Site
    users: Users
    day_s: float
    rows: list[Row] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    backed_up: list[dict[str, frozenset[str]]] = field(default_factory=list)
    filler: Path | None = None

    @property
    def day(self) -> float:
        """The day of the month."""
        return (time.monotonic() - self.began) / self.day_s

    def until(self, day: float) -> None:
        """Wait for a day."""
        time.sleep(max(0.0, self.began + day * self.day_s - time.monotonic()))

    def whole(self) -> float:
        """Wait until each file has its number of replicas, and return the seconds."""
        return self.site.wait(self._is_whole, "every promise is kept", WHOLE_S)

    def _is_whole(self) -> bool:
        done = self.site.type("dios group describe papers --json")
        if done.status:
            return False
        promise = json.loads(done.output)["promise"]
        # The writer goes on: files of the last seconds may still be on two disks only.
        return bool(promise["checked"]) and promise["conflicts"] == 0 and promise["short"] <= 1

    def note(
        self, event: str, *, commands: int = 0, most: int = 1, whole: bool = True, note: str = ""
    ) -> None:
        """Add a line to the timeline, after the replicas are whole again if ``whole`` is set."""
        day = self.day
        seconds = self.whole() if whole else None
        self.rows.append(Row(day, event, commands, most if commands else 0, seconds, note))

    # -- days ---------------------------------------------------------------------------------------
    def power_cut(self, *names: str) -> None:
        """Kill nodes at the same moment; their units start them a quarter of a day later."""
        for name in names:
            self.site.kill(name)
        self.until(self.day + 0.25)
        for name in names:
            self.site.boot(name)
        self.note(f"power cut of {' and '.join(names)}; they boot")

    def lose(self, name: str) -> None:
        """Lose a machine with its disk; a new one takes its place."""
        self.site.destroy(name)
        self.site.wait(lambda: self.site.statuses().get(name) == "dead", f"{name} is dead", 60)
        told = json.loads(self.site.must(f"dios node replace {name} --yes --json"))
        self.site.new_machine(name, told["join"])
        self.note(f"{name} is lost with its disk; a new machine takes its place", commands=2)

    def back_up(self) -> None:
        """Make a backup, the first one with its key."""
        first = not self.backed_up
        if first:
            self.site.must("dios backup keygen backup.key")
        before = self.users.files
        recipient = " --recipient backup.key.pub" if first else ""
        self.site.must(f"dios backup create {self.site.folder / 'backups'}{recipient}")
        after = self.users.files
        self.backed_up.append({path: marks | after[path] for path, marks in before.items()})
        count = 2 if first else 1
        event = "backup, after its key was made" if first else "backup, of new bytes alone"
        self.note(event, commands=count, most=count, whole=False)

    def restore(self) -> None:
        """Restore the newest backup into an empty node, and compare the bytes."""
        spare = self.site.folder / "spare"
        home = self.site.folder / "spare-home"
        home.mkdir()
        with _other_node(self.site, spare, home):
            here = {"HOME": str(home), "XDG_RUNTIME_DIR": str(home), "DIOS_NODE": str(spare)}
            place, key = self.site.folder / "backups", self.site.home / "backup.key"
            done = self.site.type(f"dios backup restore {place} --key {key}", own=here)
            assert done.status == 0, done.errors
            got = self.site.folder / "restored"
            done = self.site.type(f"dios get papers/ --recursive --output {got}", own=here)
            assert done.status == 0, done.errors
            expected = self.backed_up[-1]
            wrong = [
                path
                for path, marks in expected.items()
                if not (got / path).is_file() or digest_of(got / path) not in marks
            ]
            assert not wrong, f"{len(wrong)} files of the backup are wrong, such as {wrong[0]}"
        note = f"{len(expected)} files compared"
        self.note("the backup is restored into an empty node", commands=1, whole=False, note=note)

    def fill(self) -> None:
        """Fill the disk of a node."""
        self.filler = self.site.fill_disk()
        note = "" if self.filler else "left out: this machine permits no mounts"
        self.note(f"the disk of {SMALL_DISK} is full", whole=False, note=note)

    def empty(self) -> None:
        """Free the disk again."""
        if self.filler is not None:
            self.filler.unlink()
            self.note(f"space on the disk of {SMALL_DISK}", commands=1)

    def relabel(self) -> None:
        """Move a machine to another rack."""
        self.site.must("dios node label n4 rack=r3")
        self.note("n4 is carried into rack r3", commands=1)

    def drain(self) -> None:
        """Empty a node for work on its machine."""
        began = time.monotonic()
        self.site.must("dios node drain n2 --wait --timeout 5min")
        seconds = time.monotonic() - began
        self.note("n2 is drained", commands=1, whole=False, note=f"empty after {seconds:.0f} s")
        self.site.must("dios node drain n2 --undo")
        self.note("n2 is used again", commands=1)

    def upgrade(self) -> None:
        """Restart every node in turn, with one command if this release has it."""
        hot = self.site.has_command("dios-node restart")
        for name in sorted(self.site.data):
            data = self.site.data[name]
            if hot:
                self.site.must(f"dios-node restart --data {data}", at=name)
            else:
                self.site.lost.add(name)
                self.site.must(f"dios-node stop --data {data}", at=name)
                self.site.boot(name)
            self.whole()
        per_node = 1 if hot else 2
        note = "" if hot else "stop and start: this release has no `dios-node restart`"
        self.note(
            "upgrade: each node in turn", commands=per_node * len(self.site.data), most=per_node, note=note
        )


@contextmanager
def _other_node(site: Site, data: Path, home: Path) -> Iterator[None]:
    own = {"HOME": str(home), "XDG_RUNTIME_DIR": str(home)}
    done = site.type(f"dios-node start --data {data} --detach", own=own)
    assert done.status == 0, done.errors
    try:
        yield
    finally:
        site.type(f"dios-node stop --data {data}", own=own)


EVENTS: Final[tuple[tuple[float, Callable[[Month], None]], ...]] = (
    (1, Month.back_up),
    (2, lambda month: month.power_cut("n2")),
    (4, lambda month: month.power_cut("n4")),
    (6, lambda month: month.lose("n3")),
    (9, Month.relabel),
    (11, Month.back_up),
    (12, Month.fill),
    (14, Month.empty),
    (16, Month.drain),
    (18, Month.upgrade),
    (22, lambda month: month.lose("n1")),
    (24, lambda month: month.power_cut("n2", "n5")),
    (26, Month.back_up),
    (27, Month.restore),
    (29, lambda month: month.power_cut("n3")),
)

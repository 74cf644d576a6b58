"""``make upgrade-test``: stop a cluster of release 0.2, start it with the working tree, and read everything.

    python -m tests.upgrade.stopped [--old COMMIT]

Three nodes of the former release get groups, files with promised replicas, and a second user, if root runs
this. All are stopped, get the present package and are started. Then each user reads each file through each
node with the present commands, and again after ``dios user enrol-all``, which is the whole migration to users
with keys; writes, replicas and tasks go on.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from tests.upgrade.machines import (
    ENVIRONMENT,
    NEXT,
    ROOT,
    SETTINGS,
    Machine,
    build,
    cluster,
    expect,
    say,
)

RELEASE: Final = "34a860df"
"""The last commit of release 0.2.0."""
STRANGER: Final = 42_424
"""The number of the second user, whom no file of the machine needs to know."""
FILES: Final[Mapping[str, bytes]] = {
    "empty.txt": b"",
    "large.bin": bytes(range(256)) * 20_000,
    "small.txt": b"one fish two fish",
}


class Person(NamedTuple):
    """A user with a folder for configuration and files; the commands are those of a machine's package."""

    uid: int
    home: Path

    def types(self, machine: Machine, *words: str, accepted: tuple[int, ...] = (0,)) -> str:
        """Run ``dios`` at the node of a machine; return what it prints."""
        line = [str(machine.python), "-P", "-m", "dios.cli.main", *words]
        environment = {
            **ENVIRONMENT,
            "HOME": str(self.home),
            "XDG_CONFIG_HOME": str(self.home / "config"),
            "DIOS_NODE": machine.socket,
        }
        user = None if self.uid == os.getuid() else self.uid
        done = subprocess.run(
            line,
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            cwd=self.home,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )
        if done.returncode not in accepted:
            raise RuntimeError(
                f"dios {' '.join(words)} of user {self.uid} failed: {done.stdout}{done.stderr}"
            )
        return done.stdout

    def group(self, machine: Machine) -> str:
        """Return the alias of this user's group that was created at a node."""
        return f"of-{self.uid}-{machine.name}"


def people(folder: Path) -> list[Person]:
    """Return the user who runs the nodes, and as root a second one, with folders of their own."""
    users = []
    for uid in [os.getuid()] if os.getuid() else [0, STRANGER]:
        home = folder / f"user-{uid}"
        home.mkdir()
        for name, data in FILES.items():
            (home / name).write_bytes(data)
        os.chown(home, uid, uid)
        users.append(Person(uid, home))
    if len(users) == 1:
        say("  without root there is no second user")
    return users


def fill(person: Person, machines: list[Machine]) -> None:
    """Create a group of this user at each node, with files; the first has two promised replicas."""
    for machine in machines:
        person.types(machine, "group", "create", person.group(machine))
        person.types(machine, "put", *FILES, "--group", person.group(machine))
    person.types(machines[0], "group", "set", person.group(machines[0]), "--replicas", "2")


def check(person: Person, machines: list[Machine]) -> None:
    """Read each file of this user through each node."""
    for machine in machines:
        for other in machines:
            group = person.group(other)
            rows = json.loads(person.types(machine, "ls", "--group", group, "--json"))
            names = sorted(row["file"] for row in rows if row["file"] in FILES)
            expect(names, sorted(FILES), f"user {person.uid} lists {group} at {machine.name}")
            for name, data in FILES.items():
                copy = person.home / f"copy-of-{name}"
                person.types(machine, "get", f"{group}/{name}", "--output", str(copy))
                expect(copy.read_bytes() == data, True, f"user {person.uid} reads {group}/{name}")
                copy.unlink()


def work(person: Person, machines: list[Machine], word: str) -> None:
    """Store a file through each node in a group of the next one, and run a program on it."""
    program = person.home / "job.py"
    program.write_text("print('done')\n")
    for machine, other in zip(machines, [*machines[1:], machines[0]], strict=True):
        path = person.home / f"{word}-{machine.name}.txt"
        path.write_text(word)
        person.types(machine, "put", path.name, "--group", person.group(other))
        told = person.types(machine, "run", program.name, "--on", other.name)
        expect(told, "done\n", f"a task of user {person.uid} from {machine.name} on {other.name}")


def play(folder: Path, old: str) -> None:
    """Fill a cluster of the former release, start it with the present one, and check it."""
    folder.chmod(0o711)  # the second user passes through it
    say(f"building the wheels of {old} and of the working tree")
    former, present = build(folder / "old", old), build(folder / "new", None)
    users = people(folder)
    settings = {**SETTINGS, **({"allowed_uids": str(STRANGER)} if len(users) > 1 else {})}
    with cluster(folder, former, settings) as machines:
        (folder / "cluster").chmod(0o711)
        for person in users:
            fill(person, machines)
            check(person, machines)
        say("  filled by the former release")
        for machine in machines:
            machine.disconnect()
        for machine in machines:
            machine.command("stop")
        for machine in machines:
            machine.install(present)
        for machine in machines:
            machine.command("start", "--detach")
        for machine in machines:
            machine.connect()
        for machine in machines:
            release = str(machine.ask("version", machine.name))
            expect(release.endswith(NEXT), True, f"{machine.name} runs {release}")
        for person in users:
            check(person, machines)
            work(person, machines, "started")
        say("  read and written by the present release")
        migrate(users, machines)
        for person in users:
            check(person, machines)
            work(person, machines, "migrated")
        say("  the same with keys of the users")
    say("passed")


def migrate(users: list[Person], machines: list[Machine]) -> None:
    """Enrol the users: the owner by one command, and one whom the machine does not know by a key."""
    owner, *others = users
    # It reports a user whom the machine does not know, and enrols the rest.
    owner.types(machines[0], "user", "enrol-all", accepted=(0, 1) if others else (0,))
    for person in others:
        principal, key = person.types(machines[0], "user", "key").split()
        owner.types(machines[0], "user", "add", principal, key)
    listed = json.loads(owner.types(machines[-1], "user", "ls", "--json"))
    enrolled = {row["principal"] for row in listed}
    expect(enrolled, {f"uid:{person.uid}" for person in users}, "the enrolled users")


def main() -> int:
    """Run the upgrade in a folder that is removed."""
    options = argparse.ArgumentParser(prog="make upgrade-test", description=__doc__)
    options.add_argument("--old", default=RELEASE, help="the commit of the former package")
    old = options.parse_args().old
    if subprocess.run(["git", "cat-file", "-e", old], cwd=ROOT, capture_output=True, check=False).returncode:
        say(f"failed: the commit {old} is not in this clone: get the whole history")
        return 1
    with tempfile.TemporaryDirectory(prefix="dios-upgrade-") as folder:
        try:
            play(Path(folder), old)
        except (RuntimeError, subprocess.CalledProcessError) as error:
            say(f"failed: {error}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

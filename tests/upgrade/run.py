"""``make upgrade-test OLD=commit``: upgrade a cluster from the package of a commit to the present one.

    python -m tests.upgrade.run [--old COMMIT]

Both are built as wheels and installed into an environment for each of three nodes. Then each node gets the
present package and is restarted, one after the other, while a client with the node's own release stays
connected to each. After each step all nodes read and write each other's objects and run tasks on each other.
A node whose old release cannot be continued is stopped and started; then only durable objects must be there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.upgrade.machines import NEXT, Machine, build, cluster, expect, say


def check_all(machines: list[Machine], names: dict[str, str], word: str) -> None:
    """Let each node write every object of the others, all nodes read it, and each run a task on each."""
    for name, home in names.items():
        writer = next(machine for machine in machines if machine.name != home)
        expect(writer.ask("write", name, word), "written", f"{writer.name} writes an object of {home}")
        for reader in machines:
            expect(reader.ask("read", name), word, f"{reader.name} reads an object of {home}")
    for caller in machines:
        for other in machines:
            expect(caller.ask("run", other.name), 0, f"a task of {caller.name} on {other.name}")


def upgrade(machine: Machine, wheel: Path) -> bool:
    """Install the package and restart the node. Return True if it was continued."""
    machine.install(wheel)
    done = machine.command("restart", "--json", check=False)
    if done.returncode == 0:
        say(f"  {machine.name}: continued after {json.loads(done.stdout)['pause_ms']} ms")
        return True
    say(f"  {machine.name}: {json.loads(done.stderr)['message']}")
    machine.disconnect()
    machine.command("stop")
    machine.command("start", "--detach")
    machine.connect()
    return False


def play(folder: Path, old: str) -> None:
    """Upgrade all nodes, and check the cluster before, between and after."""
    say(f"building the wheels of {old} and of the working tree")
    former, present = build(folder / "old", old), build(folder / "new", None)
    with cluster(folder, former) as machines:
        names = {name: member.name for member in machines for name in list(member.ask("make", "one"))}  # type: ignore[call-overload] # a list of texts
        check_all(machines, names, "two")
        started = machines[2].ask("start", machines[0].name)
        expect(started, "started", "a long task")
        went_on = True
        for number, machine in enumerate(machines):
            if not upgrade(machine, present):
                went_on = False
                durable = [name for name, home in names.items() if home == machine.name][:1]
                names = {
                    name: home for name, home in names.items() if home != machine.name or name in durable
                }
            check_all(machines, names, f"word{number}")
        if went_on:
            expect(machines[2].ask("finish"), "exited 0 up down", "a task over the whole upgrade")
        releases = {member.name: str(machines[0].ask("version", member.name)) for member in machines}
        say(f"  releases at the end: {releases}")
        if not all(release.endswith(NEXT) for release in releases.values()):
            raise RuntimeError("a node does not run the present package")
    say("passed" if went_on else "passed, with stopped nodes")


def main() -> int:
    """Run the upgrade in a folder that is removed."""
    options = argparse.ArgumentParser(prog="make upgrade-test", description=__doc__)
    options.add_argument("--old", default="HEAD", help="the commit of the former package")
    with tempfile.TemporaryDirectory(prefix="dios-upgrade-") as folder:
        try:
            play(Path(folder), options.parse_args().old)
        except (RuntimeError, subprocess.CalledProcessError) as error:
            say(f"failed: {error}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

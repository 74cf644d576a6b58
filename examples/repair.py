"""An agent at work: it repairs a repository in a sandbox, tries several patches, and keeps the best.

    python examples/repair.py --image oci-layout:FOLDER:TAG --group GROUP

The image needs a shell. The patches are below, where an agent would ask a model for them. Each one is tried
in a fork of the sandbox, so that no try sees what another one has changed, and the repository before all
tries is stored as a snapshot. The best state is stored as a second snapshot, from which a colleague goes on.
"""

from __future__ import annotations

import argparse
from typing import Final, NamedTuple

import dios

LOOP: Final = 'for n in "$@"; do [ $n -gt $largest ] && largest=$n; done\necho $largest\n'

REPOSITORY: Final = {
    "/srv/repository/largest.sh": f"largest=0\n{LOOP}",
    "/srv/repository/test.sh": (
        "passed=0\n"
        "expect() {\n"
        "    wanted=$1; shift\n"
        '    [ "$(sh largest.sh "$@" 2>/dev/null)" = "$wanted" ] && passed=$((passed+1))\n'
        "}\n"
        "expect 3 1 2 3\n"
        "expect 9 9 4\n"
        "expect -1 -1 -5\n"
        "expect ''\n"
        "echo $passed\n"
    ),
}
"""A repository with a defect: the largest of negative numbers is wrong, and that of no numbers, too."""

PATCHES: Final = {
    "start lower": f"largest=-1000\n{LOOP}",
    "print nothing": f"[ $# = 0 ] && exit\nlargest=0\n{LOOP}",
    "start with the first": f"largest=$1\n{LOOP}",
    "delete it": "rm -r /srv/repository\n",
}
"""Proposals as of a model; the last one is not helpful."""


class Try(NamedTuple):
    """The outcome of a patch: its name, the number of passed tests, and the sandbox in which it was tried."""

    name: str
    passed: int
    box: dios.Sandbox


def passed_tests(box: dios.Sandbox) -> int:
    """Return the number of tests of the repository that pass, 0 if they do not run."""
    done = box.exec("sh", "-c", "cd /srv/repository && sh test.sh", timeout=20)
    lines = done.stdout.split()
    return int(lines[-1]) if lines and lines[-1].isdecimal() else 0


def tried(box: dios.Sandbox, name: str, patch: str) -> Try:
    """Apply a patch in a sandbox, and run the tests."""
    box.files.write("/srv/repository/largest.sh", patch)
    return Try(name, passed_tests(box), box)


def repair(image: str, group: str, node: str | None = None) -> str:
    """Repair the repository, and return the place of the snapshot with the best state."""
    with dios.Sandbox(node=node, image=image, memory="256 MiB") as box:
        box.files.make_folder("/srv/repository")
        for path, text in REPOSITORY.items():
            box.files.write(path, text)
        print(f"before: {passed_tests(box)} of 4 tests pass")
        box.snapshot(f"dios://{group}/before")
        forks = box.fork(len(PATCHES))
        try:
            tries = [tried(fork, *patch) for fork, patch in zip(forks, PATCHES.items(), strict=True)]
            for attempt in tries:
                print(f"{attempt.name}: {attempt.passed} of 4 tests pass")
            best = max(tries, key=lambda attempt: attempt.passed)
            return best.box.snapshot(f"dios://{group}/repaired").place
        finally:
            for fork in forks:
                fork.close()


def main() -> None:
    """Repair the repository, and let another sandbox go on with the result."""
    parser = argparse.ArgumentParser(description="Try patches in forks of a sandbox, and keep the best.")
    parser.add_argument("--image", required=True, help="an image with a shell: oci-layout:FOLDER:TAG")
    parser.add_argument("--group", required=True, help="the alias of a group for the snapshots")
    arguments = parser.parse_args()
    place = repair(arguments.image, arguments.group)
    with dios.Sandbox(snapshot=place, memory="256 MiB") as box:
        print(f"{place}: {passed_tests(box)} of 4 tests pass")


if __name__ == "__main__":
    main()

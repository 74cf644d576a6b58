"""``make lab PLAY=1``: a cluster on a network of its own, and a prompt to break it at.

Not for: tests. Everything ends with the prompt: at ``quit``, the end of input, and Ctrl-C.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.support.lab.daemons import PORT, DaemonProgram, clusters_are_here, seen_by
from tests.support.lab.machines import Lab, Machine
from tests.support.lab.namespaces import NotHereError

COUNT: Final = 3
HELP: Final = """\
cut A B          nothing passes between two nodes
cut-one-way A B  nothing that A sends reaches B
isolate A        nothing passes between A and all others
delay MS         every frame is so late; a round trip takes twice that
loss PERCENT     so many frames never arrive
freeze A         every process of A stops
kill A           kill -9
start A          start it again
heal             all of that is over, but for what was killed
see              who sees whom how
quit"""


def say(text: str) -> None:
    """A line for the person."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def see(lab: Lab) -> None:
    """Who sees whom how; a node that does not answer is said to."""
    for machine in lab.nodes:
        if machine.process is None:
            say(f"{machine.name} is not running")
            continue
        try:
            view = seen_by(machine, 3)
        except (AssertionError, OSError) as error:
            say(f"{machine.name} does not answer: {error}")
            continue
        say(f"{machine.name} sees " + ", ".join(f"{name} {status}" for name, status in sorted(view.items())))


def obey(lab: Lab, line: str) -> bool:
    """Do what a line says; False at the end."""
    word, *rest = line.split()
    named = {machine.name: machine for machine in lab.nodes}
    pairs: dict[str, Callable[[Machine, Machine], None]] = {"cut": lab.cut, "cut-one-way": lab.cut_one_way}
    single: dict[str, Callable[[Machine], None]] = {
        "isolate": lab.isolate,
        "freeze": lab.freeze,
        "kill": lab.kill,
        "start": lab.start,
    }
    if word == "quit":
        return False
    if word in pairs:
        pairs[word](named[rest[0]], named[rest[1]])
    elif word in single:
        single[word](named[rest[0]])
    elif word == "delay":
        lab.delay(float(rest[0]))
    elif word == "loss":
        lab.loss(float(rest[0]))
    elif word == "heal":
        lab.heal()
    elif word == "see":
        see(lab)
    else:
        say(HELP)
    return True


def main() -> int:
    """Start three nodes, and obey lines until there are no more."""
    with tempfile.TemporaryDirectory(prefix="dios-lab-") as folder:
        try:
            clusters_are_here()
            lab = Lab(Path(folder), DaemonProgram(), COUNT)
        except NotHereError as error:
            say(f"the lab cannot be built here: {error}")
            return 1
        with lab:
            say("starting three nodes")
            lab.start()
            for machine in lab.nodes:
                place = f"{machine.address}:{PORT}  rack {machine.rack}"
                say(f"{machine.name}  {place}  dios node ls --node {machine.socket}")
            while True:
                sys.stdout.write("lab> ")
                sys.stdout.flush()
                line = sys.stdin.readline()
                if not line:
                    return 0
                try:
                    if line.strip() and not obey(lab, line):
                        return 0
                except (KeyError, IndexError, TypeError, ValueError, AssertionError) as error:
                    say(f"that did not work ({type(error).__name__}: {error}); `help` lists what does")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)

"""Print the figures of decision 0040: ``python tests/sim/name_figures.py``.

The cost of a lookup and of a create over all nodes, by the number of nodes: messages between the cores, steps
of the cores, and the processor time of these steps.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from time import process_time_ns

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from dios import limits
from dios.core import effects, events
from dios.core.effects import Outcome
from dios.core.machine import Core
from dios.core.remote.name_index import Ring
from dios.ids import Name
from dios.wire import dcp, messages
from tests.support.core import cluster as support

SIZES = (3, 8, 16, 32, 64)
REPEATS = 40


class Counted:
    """The steps, the messages between cores, and the processor time of these steps."""

    def __init__(self) -> None:
        self.steps = self.messages = self.spent_ns = 0

    def step(self, core: Core, event: events.Event) -> Outcome:
        """Make a step and count it."""
        since = process_time_ns()
        outcome = STEP(core, event)
        self.spent_ns += process_time_ns() - since
        self.steps += 1
        self.messages += sum(
            isinstance(effect, effects.Send) and not isinstance(effect.message, dcp.Gossip)
            for effect in outcome.after
        )
        return outcome


STEP = Core.step


def main() -> None:
    """Print a table with a row for each number of nodes."""
    parser = argparse.ArgumentParser(description="The figures of decision 0040.")
    parser.add_argument("--without", action="store_true", help="ask all nodes, without the index")
    if parser.parse_args().without:
        Ring.is_large = False  # type: ignore[assignment, method-assign]
    counted = Counted()

    def step(core: Core, event: events.Event) -> Outcome:
        return counted.step(core, event)

    Core.step = step  # type: ignore[method-assign, assignment]
    sys.stdout.write("nodes  kind     messages  steps  us\n")
    for size in SIZES:
        town = support.Cluster(("r1",) * size)
        people = [town.session(node) for node in town.nodes]
        town.advance(limits.INDEX_SETTLE_MS + 100)
        keeper, asker = people[0], people[-1]
        names: list[Name] = []

        def create() -> None:
            names.append(Name(keeper.create(data=b"x").name or b""))  # noqa: B023 - used in this round

        def present() -> None:
            asker.ask(messages.References, messages.Lookup(names[len(names) % REPEATS - 1]))  # noqa: B023
            names.append(names.pop(0))  # noqa: B023

        def absent() -> None:
            asker.ask(messages.References, messages.Lookup(town.nodes[0].core.state.fresh_name()))  # noqa: B023

        for kind, act in (("create", create), ("present", present), ("absent", absent)):
            counted.steps = counted.messages = counted.spent_ns = 0
            for _ in range(REPEATS):
                act()
                town.settle()
            figures = (counted.messages / REPEATS, counted.steps / REPEATS, counted.spent_ns / REPEATS / 1000)
            sys.stdout.write(f"{size:5}  {kind:7}  {figures[0]:8.1f}  {figures[1]:5.1f}  {figures[2]:.0f}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()

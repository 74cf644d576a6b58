"""Many tries at once with rewards, as training by reinforcement needs them.

    python examples/rollouts.py --tries 200 --together 16

Each try is a program that nobody has read; a trainer would sample it from a model, and here it is put
together at random. A session loads the checks once, and each try runs in a fork of it: it sees neither the
other tries nor what they change. The reward is the part of the checks that the program passes. A try that
computes for ever, takes too much memory or ends its session has the reward 0, and disturbs no other.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Final

import dios

CHECKS: Final = """
EXPECTED = {(): 0, (1,): 1, (1, 2): 3, (-4, 4): 0, tuple(range(100)): 4950}

def reward(total):
    def passes(numbers, wanted):
        try:
            return total(list(numbers)) == wanted
        except Exception:
            return False
    return sum(passes(*check) for check in EXPECTED.items()) / len(EXPECTED)
"""

STARTS: Final = ("0", "1", "numbers[0]", "[]")
STEPS: Final = ("total += number", "total = number", "total -= number", "while True: pass")
ENDS: Final = ("return total", "return abs(total)", "import os; os._exit(1)", "return bytearray(1 << 34)")
"""Parts of a program: the first of each is right, the others are as models write on a bad day."""


@dataclass
class Outcome:
    """The outcome of all tries.

    Attributes:
        tries: their number.
        rewards: how many tries had which reward, from 0 to 1.
        failures: how many tries ended with which error.
        best: the program with the highest reward, the first of several.
        seconds: the duration of all.
    """

    tries: int = 0
    rewards: Counter[float] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    best: str = ""
    seconds: float = 0.0

    def add(self, program: str, reward: float, failure: str) -> None:
        """Add one try."""
        if not self.tries or reward > max(self.rewards):
            self.best = program
        self.tries += 1
        self.rewards[reward] += 1
        if failure:
            self.failures[failure] += 1


def sampled(random: Random) -> str:
    """Return a program, in place of one that a model writes."""
    start, step, end = (random.choices(parts, weights=(6, 2, 1, 1))[0] for parts in (STARTS, STEPS, ENDS))
    return (
        f"def total(numbers):\n    total = {start}\n    for number in numbers:\n        {step}\n    {end}\n"
    )


async def tried(origin: dios.aio.Sandbox, program: str) -> tuple[float, str]:
    """Run one program in a fork, and return its reward and the kind of its failure, empty without one."""
    async with await origin.fork() as box:
        result = await box.run(f"{program}\nreward(total)")
        if result.error is not None:
            return 0.0, "session ended" if result.error.ended else result.error.type
        return float(result.value_repr or 0), ""


async def rollouts(tries: int, together: int, seed: int) -> Outcome:
    """Run all tries, at most ``together`` at the same time, and say every two seconds how far they are."""
    outcome, begin = Outcome(), time.monotonic()
    programs = iter([sampled(Random(f"{seed} {number}")) for number in range(tries)])  # noqa: S311

    async def play(origin: dios.aio.Sandbox) -> None:
        for program in programs:
            outcome.add(program, *await tried(origin, program))

    async def tell() -> None:
        while True:
            await asyncio.sleep(2)
            print(f"{outcome.tries} of {tries} tries, rewards {dict(outcome.rewards)}", file=sys.stderr)

    async with dios.aio.Sandbox(memory="256 MiB", timeout=5, forkable=True) as origin:
        await origin.run(CHECKS)
        async with asyncio.TaskGroup() as group:
            teller = group.create_task(tell())
            players = [group.create_task(play(origin)) for _ in range(together)]
            await asyncio.gather(*players)
            teller.cancel()
    outcome.seconds = time.monotonic() - begin
    return outcome


def main() -> None:
    """Print the rewards, the failures and the best program."""
    parser = argparse.ArgumentParser(description="Try many programs at once in forks of a session.")
    parser.add_argument("--tries", type=int, default=200)
    parser.add_argument("--together", type=int, default=16, help="tries at the same time (default: 16)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    outcome = asyncio.run(rollouts(arguments.tries, arguments.together, arguments.seed))
    if arguments.json:
        print(json.dumps(vars(outcome)))
        return
    print(f"{outcome.tries} tries in {outcome.seconds:.1f} s")
    for reward, count in sorted(outcome.rewards.items()):
        print(f"  reward {reward:.1f}: {count}")
    for failure, count in outcome.failures.most_common():
        print(f"  {failure}: {count}")
    print(outcome.best, end="")


if __name__ == "__main__":
    main()

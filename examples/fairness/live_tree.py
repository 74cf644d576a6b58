"""The live tree: elements whose order changes as time passes, without comparing all of them.

Runners start at different places with different speeds. The tree knows when two neighbours will meet, and
does nothing between two meetings.
"""

from dios.fairness import LiveTree

# The start (m) and the speed (m/s) of each runner.
Runner = tuple[float, float]
RUNNERS: dict[str, Runner] = {"hare": (0.0, 10.0), "fox": (40.0, 6.0), "tortoise": (100.0, 0.5)}


def place(t: float, runner: Runner) -> float:
    """Return a runner's place at ``t``: the priority."""
    begin, speed = runner
    return begin + speed * t


def meeting(t: float, a: Runner, b: Runner) -> float | None:
    """Return the time after ``t`` until two runners meet, or None."""
    gap, speed = place(t, b) - place(t, a), a[1] - b[1]
    return gap / speed if speed and gap / speed > 0 else None


def main() -> None:
    """Print the order and the leader at some times."""
    race: LiveTree[str, Runner] = LiveTree(place, meeting)
    for name, runner in RUNNERS.items():
        race.insert(name, runner)
    for t in (0.0, 9.0, 10.0, 11.0, 18.0, 1_000_000.0):
        race.update(t)
        print(
            f"after {t:9,.0f} s: {' < '.join(race):22s} {race.maximum()} leads; {race.events} meetings so far"
        )
    race.delete("hare")
    print(f"without the hare: {race.maximum()} leads")


if __name__ == "__main__":
    main()

"""SDRF: one user has used a pool alone for days when another user arrives, and both share it then.

Under DRF each gets a half. SDRF remembers: a user that takes more than its share commits itself to give that
back when another user needs it. The discount factor says how long SDRF remembers.
"""

from dios.fairness import SdrfScheduler

CPUS = 12
DAY = 86_400.0


def spike(delta: float | None, days: float) -> int:
    """Return how many of 12 CPUs a new user gets after another one has used them alone for ``days``."""
    pool = SdrfScheduler([CPUS], users=["always", "seldom"], delta=delta)
    for task in range(2 * CPUS):
        pool.submit("always", [1], f"old {task}", t=0.0)
    pool.schedule(0.0)
    now = days * DAY
    for task in range(CPUS):
        pool.submit("seldom", [1], f"new {task}", t=now)
        pool.finish(f"old {task}", t=now)
    return sum(str(tag).startswith("new") for tag in pool.schedule(now))


def main() -> None:
    """Print the new user's CPUs, by the time for which the other user had the pool alone."""
    print(f"of {CPUS} CPUs the newcomer gets, after")
    print("                 1 h  1 day  10 days  100 days")
    for name, delta in (("DRF", None), ("SDRF, 1 - 1e-4", 1 - 1e-4), ("SDRF, 1 - 1e-6", 1 - 1e-6)):
        counts = [spike(delta, days) for days in (1 / 24, 1.0, 10.0, 100.0)]
        print(f"{name:15s}  {counts[0]:3d}  {counts[1]:5d}  {counts[2]:7d}  {counts[3]:8d}")


if __name__ == "__main__":
    main()

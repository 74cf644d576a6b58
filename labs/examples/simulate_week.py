"""Waiting times of 200 users in a synthetic week, simulated under DRF and under SDRF."""

from labs.simulate.fairness.google_like import GROUPS, GoogleLike, generate_trace
from labs.simulate.fairness.simulate import simulate


def main() -> None:
    """Print the mean waiting of each kind of user, in a pool of 80 % of the average use of all tasks."""
    week = generate_trace(GoogleLike(users=200, tasks=50_000, days=7.0, seed=2))
    pool = week.usage() * 0.8
    sizes = [2, 24, 174]
    print("mean wait, minutes  " + "  ".join(f"{group.name:>9s}" for group in GROUPS))
    for name, delta in (("DRF", None), ("SDRF, 1 - 1e-5", 1 - 1e-5), ("SDRF, 1 - 1e-6", 1 - 1e-6)):
        start, _ = simulate(
            week.submit_us, week.duration_us, week.user, week.demands, pool, users=week.users, delta=delta
        )
        wait = (start - week.submit_us) / 60e6
        first, cells = 0, []
        for size in sizes:
            mine = (week.user >= first) & (week.user < first + size)
            cells.append(f"{wait[mine].mean():9.1f}")
            first += size
        print(f"{name:18s}  " + "  ".join(cells))


if __name__ == "__main__":
    main()

"""Dominant resource fairness: three users of CPUs and memory, compared with an even division of both."""

import numpy as np

from dios.fairness import drf

CPUS, MEMORY = 90.0, 180.0

# The needs of a task of each user, and the number of tasks that the user would like to run.
TASKS = {"crunching": (3.0, 1.0, 40), "caching": (1.0, 4.0, 60), "a script": (1.0, 1.0, 5)}


def main() -> None:
    """Divide once, and compare with a third of everything for each user."""
    needs = np.array([(cpus, memory) for cpus, memory, _ in TASKS.values()])
    wanted = np.array([count for _, _, count in TASKS.values()])
    totals = np.array([CPUS, MEMORY])
    shares = drf(needs * wanted[:, None] / totals)

    print("user        tasks  with a third  dominant share  stopped by")
    for row, name in enumerate(TASKS):
        tasks = float(shares.amounts[row, 0] * CPUS / needs[row, 0])
        third = min(float((totals / 3 / needs[row]).min()), float(wanted[row]))
        why = ("CPUs", "memory", "nothing: it has all it wants")[shares.bottleneck[row]]
        print(f"{name:10s}  {tasks:5.1f}  {third:12.1f}  {shares.share[row]:14.2f}  {why}")
    used = shares.amounts.sum(axis=0)
    print(f"used: {used[0]:.0%} of the CPUs, {used[1]:.0%} of the memory")


if __name__ == "__main__":
    main()

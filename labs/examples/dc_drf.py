"""DC-DRF: shares of a cloud before a deadline, in every control interval, and the cost of a short deadline.

A resource with at most epsilon left counts as used up, so that fewer rounds are needed. After an interval
that was too late, epsilon rises; after one with time to spare, it falls.
"""

import numpy as np

from dios.fairness import DcDrf, edrf
from labs.simulate.fairness.generate_demands import generate_demands


def main() -> None:
    """Divide the same demands with a fixed epsilon, and with the search under a deadline."""
    cloud = generate_demands("G0", 20_000, 2_000, seed=1)
    exact = edrf(cloud)
    print("epsilon  rounds  allocated  worst tenant")
    for epsilon in (0.3, 0.1, 0.01, 0.001, 0.0):
        interval = DcDrf(cloud, deadline_s=60.0, epsilon=epsilon).interval()
        parts = interval.share / exact.share
        allocated = interval.amounts.sum() / exact.amounts.sum()
        print(f"{interval.epsilon:7g}  {interval.rounds:6d}  {allocated:9.1%}  {np.min(parts):12.1%}")

    print("control intervals under 3 ms:")
    sharing = DcDrf(cloud, deadline_s=0.003)
    for number in range(1, 9):
        interval = sharing.interval()
        how = "complete" if interval.completed else "ended by the deadline"
        print(f"  {number}: epsilon {interval.epsilon:.2g}, {interval.rounds} rounds, {how}")


if __name__ == "__main__":
    main()

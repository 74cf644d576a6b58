"""A comparison of policies: synthetic jobs arrive at a small data centre, and each policy admits what it can.

    python labs/examples/packer_policies.py [MBIT_PER_SECOND]

All policies get the same jobs in the same order. The argument is the median bandwidth of an edge, 30 by
default. Try 5, where links are plentiful, and 45.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from dios.packer import Datacenter, allocate
from dios.packer.baselines import POLICIES
from labs.simulate.packing.generate_jobs import Workload, generate_job

SERVERS, INSTANTS, JOBS_EACH, WARM = 120, 30, 3, 10


def main(mbps: float) -> None:
    """Print a line for each policy."""
    workload = Workload(mbps=mbps)
    jobs = [generate_job(workload, 1, number) for number in range(INSTANTS * JOBS_EACH)]
    print(f"{len(jobs)} jobs, {SERVERS} servers, edges of {mbps:g} Mbit/s in the median")
    print(f"{'policy':16}{'tasks admitted':>16}{'cpu':>8}{'links':>8}{'ms a job':>10}   refused for")
    for name, policy in POLICIES.items():
        cluster = Datacenter.tree(SERVERS, per_rack=20, racks_per_pod=2, horizon=32)
        wanted = admitted = 0
        short: dict[str, int] = {}
        used = []
        allocate(
            Datacenter.tree(2), generate_job(workload, 2, 0), policy=policy
        )  # what is compiled is compiled now
        begun = time.process_time()
        for number, job in enumerate(jobs):
            placement = allocate(cluster, job, number // JOBS_EACH, policy=policy)
            if number >= WARM * JOBS_EACH:
                wanted += len(job.nodes)
                admitted += len(job.nodes) if placement else 0
                used.append(cluster.utilisation())
            if not placement:
                short[placement.resource] = short.get(placement.resource, 0) + 1
        each_ms = (time.process_time() - begun) / len(jobs) * 1e3
        cpu, links = np.mean(used, axis=0)[[0, 4]]
        why = ", ".join(f"{resource} {count}" for resource, count in sorted(short.items()))
        print(f"{name:16}{admitted / wanted:>16.0%}{cpu:>8.0%}{links:>8.0%}{each_ms:>10.2f}   {why}")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 30.0)

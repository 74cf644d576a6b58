"""Jobs without a graph: MapReduce, rounds as in PageRank, a web service, and other systems' descriptions."""

from dios.packer import Datacenter, Spot, TiMra, allocate
from dios.packer.templates import Component, Needs, hose, iterative, map_reduce, peaks, tag, web_service


def jobs() -> list[TiMra]:
    """Return one job of each kind."""
    return [
        map_reduce(8, 2, map_needs=Needs(cpu=2, disk_read=40), shuffle=20),
        iterative(4, rounds=3, needs=Needs(cpu=4, memory=4096), exchange=50),
        web_service(2, 4, load=(0.2, 0.5, 1.0, 0.7), storage="objects", instant_s=1.0),
        hose(4, bandwidth=100, instants=6),
        tag({"web": Component(2), "db": Component(1)}, {("web", "db"): (50, 100)}, instants=6),
    ]


def main() -> None:
    """Admit each job, by its demands over time and by its peaks, and print what that reserves."""
    print(f"{'job':10}{'tasks':>7}{'edges':>7}{'instants':>10}{'servers':>9}{'cpu':>8}{'by peaks':>10}")
    for job in jobs():
        used = []
        servers = 0
        for version in (job, peaks(job)):
            cluster = Datacenter.tree(40, per_rack=10, racks_per_pod=2, services={"objects": [Spot(rack=0)]})
            allocation = allocate(cluster, version)
            if not allocation:
                raise SystemExit(str(allocation))
            used.append(cluster.utilisation(job.instants)[0])
            servers = servers or len(set(allocation.servers.values()))
        tasks = sum(node.service is None for node in job.nodes)
        print(
            f"{job.name:10}{tasks:7}{len(job.edges):7}{job.instants:10}{servers:9}{used[0]:8.2%}{used[1]:10.2%}"
        )


if __name__ == "__main__":
    main()

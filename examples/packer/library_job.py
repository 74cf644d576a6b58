"""A job that declares what it needs and when: in Python, to TOML and back, and where it would be placed."""

from dios.packer import Datacenter, Edge, Node, TiMra, allocate

JOB = TiMra(
    "nightly",
    instants=8,
    nodes=[
        Node(
            "extract", cpu=2, memory=2048, disk_read={0: 120, 3: 0}, end=5
        ),  # steps: 120 MB/s up to instant 3
        Node("train", cpu=[0, 0, 0, 4, 12, 12, 12, 2], memory=16_384, start=3),  # one number for each instant
        Node("report", cpu=1, memory=512, start=7, after=("train",)),  # nothing is sent, but it comes after
    ],
    edges=[Edge("extract", "train", bandwidth={3: 600, 5: 0})],  # Mbit/s
)


def main() -> None:
    """Write the job as text, read it again, and admit it."""
    text = JOB.to_toml()
    print(text)
    again = TiMra.from_toml(text)
    print("the same after a round trip:", again.same_as(JOB))

    cluster = Datacenter.tree(8, per_rack=4)
    allocation = allocate(cluster, again, now=0)
    if not allocation:
        raise SystemExit(str(allocation))
    for task, server in allocation.places.items():
        print(f"{task:8} on {server}")
    print("cores free on server 0:", [round(free) for free in cluster.free("cpu")[:9, 0].tolist()])


if __name__ == "__main__":
    main()

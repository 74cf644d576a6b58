"""Admission of whole jobs: peaks that do not fit, demands over time that do, and the reason for a refusal."""

from dios.packer import Datacenter, Edge, Node, TiMra, allocate
from dios.packer.templates import peaks


def busy_at(name: str, instant: int) -> TiMra:
    """Return a job whose task needs 12 of 16 cores at one instant of six, and 2 at the others."""
    return TiMra(name, [Node("task", cpu=[12 if at == instant else 2 for at in range(6)])], instants=6)


def main() -> None:
    """Admit three jobs that peak one after the other on one server; then some that never fit."""
    server = Datacenter.tree(1)
    for instant, name in enumerate(("first", "second", "third")):
        allocation = allocate(server, busy_at(name, instant), now=0)
        print(f"{name}: {'admitted' if allocation else allocation}")
    print("cores free:", [round(free) for free in server.free("cpu")[:6, 0].tolist()])

    # The same three by their peaks only: 12 and 12 are more than 16.
    server = Datacenter.tree(1)
    answers = [allocate(server, peaks(busy_at(f"peak {at}", at)), now=0) for at in range(3)]
    print("by peaks:", sum(map(bool, answers)), "of 3")

    # Only one of two tasks fits: nothing is reserved.
    pair = [Node("small", cpu=1), Node("large", cpu=20)]
    cluster = Datacenter.tree(2)
    print(allocate(cluster, TiMra("pair", pair)))
    print("nothing stays booked:", cluster.is_empty())

    # Room on servers, but not on the link between them.
    talk = [Node("here", cpu=16), Node("there", cpu=16)]
    print(allocate(cluster, TiMra("talkers", talk, [Edge("here", "there", 1500)])))

    # Released amounts are available at once.
    allocation = allocate(cluster, TiMra("whole", [Node("a", cpu=16), Node("b", cpu=16)], instants=10))
    if not allocation:
        raise SystemExit(str(allocation))
    print("beside it:", bool(allocate(cluster, TiMra("next", [Node("c", cpu=1)]))))
    allocation.release()
    print("after it:", bool(allocate(cluster, TiMra("next", [Node("c", cpu=1)]))))


if __name__ == "__main__":
    main()

"""Which machines are alike, and the trees that are refused (§6.2.4, §6.5.2)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dios import limits
from dios.host.machine.machine_tree import BadTopologyError, Element, MachineTopology, Part, check
from tests.support.firmament import sysfs


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> sysfs.Seen:
    """Machines as they are read from files made by hand, each kind once."""
    return sysfs.reader(tmp_path_factory.mktemp("machines"))


def test_machines_of_one_type_have_one_fingerprint(seen: sysfs.Seen) -> None:
    """Equal machines are one type, though the firmware keeps some MiB more on one; other ones are not."""
    types = {name: seen(getattr(sysfs, f"TYPE_{name}")).machine_type for name in "ABCDEM"}
    assert len(set(types.values())) == 6
    machine = seen(sysfs.TYPE_C)
    assert replace(machine, memory=machine.memory - 100 * 2**20).machine_type == types["C"]
    assert replace(machine, memory=machine.memory // 2).machine_type != types["C"]
    assert replace(machine, model="other").machine_type != types["C"]
    assert len(types["C"]) == 16


@pytest.mark.parametrize(
    ("shown", "modules"),
    [(62.8, 64), (11.7, 12), (7.75, 8), (8, 8), (23.54, 24), (31.2, 32), (33, 36)],
)
def test_memory_is_rounded_up_to_an_eighth(seen: sysfs.Seen, shown: float, modules: int) -> None:
    """What firmware keeps for itself makes no new type; another module does."""
    machine = seen(sysfs.TYPE_A)
    rounded, same, more = (
        replace(machine, memory=int(gib * sysfs.GIB)).machine_type for gib in (modules, shown, modules * 1.2)
    )
    assert rounded == same
    assert rounded != more


def tampered(machine: MachineTopology, case: str) -> MachineTopology:
    """A machine with one thing wrong."""
    tree = machine.tree
    wrong = {
        "lost": lambda: replace(machine, tree=replace(tree, children=())),
        "doubled": lambda: replace(machine, tree=replace(tree, children=tree.children * 2)),
        "order": lambda: replace(machine, tree=replace(tree, cpus=tree.cpus[::-1])),
        "root": lambda: replace(machine, tree=tree.children[0]),
        "memory": lambda: replace(machine, memory=-1),
        "threads": lambda: replace(
            machine, tree=replace(tree, children=(Element(Part.THREAD, 3, tree.cpus),))
        ),
    }
    return wrong[case]()


@pytest.mark.parametrize("case", ["lost", "doubled", "order", "root", "memory", "threads"])
def test_a_machine_that_contradicts_itself_is_refused(seen: sysfs.Seen, case: str) -> None:
    """Each contradiction in a machine's tree is an error, before anything uses it."""
    with pytest.raises(BadTopologyError):
        check(tampered(seen(sysfs.TYPE_A), case))


def test_a_tree_over_the_bound_is_refused(seen: sysfs.Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree with one element more than may be is an error; with as many as may be it is not."""
    machine = seen(sysfs.TYPE_A)
    elements = len(list(machine.tree.walk()))
    monkeypatch.setattr(limits, "TOPOLOGY_ELEMENTS_MAX", elements)
    check(machine)
    monkeypatch.setattr(limits, "TOPOLOGY_ELEMENTS_MAX", elements - 1)
    with pytest.raises(BadTopologyError, match="elements"):
        check(machine)

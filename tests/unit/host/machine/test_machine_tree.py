"""Descriptions of machines that come from other nodes, and which machines are alike (§6.2.4, §6.5.2)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dios import limits
from dios.host.machine.topology import BadTopologyError, Element, MachineTopology, Part
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
    assert replace(machine, memory=machine.memory - 100 * 2**20, clock_khz=1).machine_type == types["C"]
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


def test_a_description_survives_the_way_to_the_parent(seen: sysfs.Seen) -> None:
    """As JSON and back it is the same machine."""
    machine = seen(sysfs.TYPE_E)
    assert MachineTopology.from_dict(json.loads(json.dumps(machine.as_dict()))) == machine


def tampered(machine: MachineTopology, case: str) -> dict[str, object]:
    """A description with one thing wrong."""
    tree = machine.tree
    wrong = {
        "lost": lambda: replace(machine, tree=replace(tree, children=())),
        "doubled": lambda: replace(machine, tree=replace(tree, children=tree.children * 2)),
        "order": lambda: replace(machine, tree=replace(tree, cpus=tree.cpus[::-1])),
        "usable": lambda: replace(machine, usable=(99,)),
        "root": lambda: replace(machine, tree=tree.children[0]),
        "memory": lambda: replace(machine, memory=-1),
        "model": lambda: replace(machine, model="m" * 300),
        "notes": lambda: replace(machine, missing=("x",) * 5_000),
        "threads": lambda: replace(
            machine, tree=replace(tree, children=(Element(Part.THREAD, 3, tree.cpus),))
        ),
    }
    return wrong[case]().as_dict()


@pytest.mark.parametrize(
    "case", ["lost", "doubled", "order", "usable", "root", "memory", "model", "notes", "threads"]
)
def test_a_description_that_contradicts_itself_is_refused(seen: sysfs.Seen, case: str) -> None:
    """Each way to tell nonsense about a machine is an error, before anything uses it."""
    with pytest.raises(BadTopologyError):
        MachineTopology.from_dict(tampered(seen(sysfs.TYPE_A), case))


@pytest.mark.parametrize(
    ("field", "value"),
    [("memory", "much"), ("tree", None), ("usable", 3), ("cpu_quota_milli", 1.5), ("disks", [{}])],
)
def test_a_field_of_a_wrong_kind_is_refused_by_its_name(seen: sysfs.Seen, field: str, value: object) -> None:
    """The error names the field that another node filled wrongly."""
    plain = seen(sysfs.TYPE_A).as_dict()
    plain[field] = value
    with pytest.raises(BadTopologyError, match=field):
        MachineTopology.from_dict(plain)


def test_a_tree_over_the_bound_is_refused(seen: sysfs.Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree with one element more than may be is an error; with as many as may be it is not."""
    machine = seen(sysfs.TYPE_A)
    elements = len(list(machine.tree.walk()))
    monkeypatch.setattr(limits, "TOPOLOGY_ELEMENTS_MAX", elements)
    assert MachineTopology.from_dict(machine.as_dict()) == machine
    monkeypatch.setattr(limits, "TOPOLOGY_ELEMENTS_MAX", elements - 1)
    with pytest.raises(BadTopologyError, match="elements"):
        MachineTopology.from_dict(machine.as_dict())


def test_a_tree_without_an_end_is_refused(seen: sysfs.Seen) -> None:
    """A description nested thousands deep is an error, not a crash."""
    plain = seen(sysfs.TYPE_A).as_dict()
    deep: dict[str, object] = {"part": "core", "number": 0, "cpus": [0], "children": []}
    for _ in range(20_000):
        deep = {"part": "core", "number": 0, "cpus": [0], "children": [deep]}
    plain["tree"] = deep
    with pytest.raises(BadTopologyError):
        MachineTopology.from_dict(plain)
    # Taken apart from the top: the interpreter would do it by recursion.
    while deep["children"]:
        inside = deep["children"]
        assert isinstance(inside, list)
        deep = inside.pop()

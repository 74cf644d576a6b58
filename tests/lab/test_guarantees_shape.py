"""An interface held to what its link carries, by a real node that root starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dios.host.network.shaping import HANDLE, RECORD
from tests.support.lab.daemons import DaemonProgram
from tests.support.lab.machines import Lab, Machine
from tests.support.lab.namespaces import NotHereError

RATE = 10_000_000
BITS = "84800Kbit"


class Shaping(DaemonProgram):
    """Nodes whose settings change from start to start."""

    def __init__(self) -> None:
        super().__init__(**{"pool-size": "0"}, coordinator="off")
        self.more: dict[str, str] = {}

    def command(self, machine: Machine, lab: Lab) -> list[str]:
        """With the settings of now."""
        return [
            *super().command(machine, lab),
            *(word for key, value in self.more.items() for word in (f"--{key}", value)),
        ]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """One machine."""
    try:
        with Lab(tmp_path, Shaping(), 1) as live_lab:
            yield live_lab
    except NotHereError as error:
        pytest.skip(str(error))


def root_of(machine: Machine) -> list[str]:
    """What its interface sends by, in the words of ``tc``."""
    return machine.runs("/usr/sbin/tc", "qdisc", "show", "dev", "eth0", "root").split()


def choose(lab: Lab, **more: str) -> None:
    """Settings from the next start on."""
    assert isinstance(lab.program, Shaping)
    lab.program.more = {key.replace("_", "-"): value for key, value in more.items()}


def refusal(lab: Lab) -> str:
    """What the node says that does not start."""
    (machine,) = lab.nodes
    lab.begin(machine)
    assert machine.process is not None
    assert machine.process.wait(30) == 1
    machine.process = None
    return machine.said()


def test_an_interface_is_shaped_while_the_node_runs(lab: Lab) -> None:
    """To its link_rate and a little for headers, known by a handle; as it was when the node has stopped."""
    (machine,) = lab.nodes
    before = root_of(machine)
    choose(lab, shape="eth0", link_rate=str(RATE))
    lab.start()
    words = root_of(machine)
    assert words[:3] == ["qdisc", "tbf", HANDLE]
    assert words[words.index("rate") + 1] == BITS
    lab.stop(machine)
    assert root_of(machine) == before
    assert not (machine.seen_data / RECORD).exists()


@pytest.mark.parametrize("again", [True, False])
def test_what_a_killed_node_left_behind_is_gone_after_the_next_start(lab: Lab, *, again: bool) -> None:
    """Whether that one shapes too or not; and once it stops nothing is left."""
    (machine,) = lab.nodes
    before = root_of(machine)
    choose(lab, shape="eth0", link_rate=str(RATE))
    lab.start()
    lab.kill(machine)
    assert root_of(machine)[1:3] == ["tbf", HANDLE], "nobody was there to remove it"
    if not again:
        choose(lab)
    lab.start()
    assert (root_of(machine)[1:3] == ["tbf", HANDLE]) is again
    lab.stop(machine)
    assert root_of(machine) == before


def test_what_cannot_be_shaped_is_refused_at_start(lab: Lab) -> None:
    """Without a rate, without such an interface, or where somebody else shapes it, whose work stays."""
    (machine,) = lab.nodes
    choose(lab, shape="eth0")
    assert "needs the setting link_rate" in refusal(lab)
    choose(lab, shape="eth7", link_rate=str(RATE))
    assert "Cannot find device" in refusal(lab)
    machine.runs("/usr/sbin/tc", "qdisc", "add", "dev", "eth0", "root", "handle", "7:", "pfifo")
    choose(lab, shape="eth0", link_rate=str(RATE))
    assert "shaped already, with pfifo 7:" in refusal(lab)
    assert root_of(machine)[1:3] == ["pfifo", "7:"]

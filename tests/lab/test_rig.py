from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.lab.echo import EchoProgram, asked, reaches
from tests.support.lab.machines import Lab, faketime
from tests.support.lab.namespaces import MachineNamespaces, NotHereError
from tests.support.node.running_node import exists, wait_until

ROOT = Path(__file__).resolve().parents[2]
DELAY_MS = 30
LOSS_PERCENT = 40
DISK_BYTES = 1 << 20
OFFSET_S = 3600
STRANDED = """
import sys
from pathlib import Path
from tests.support.lab.echo import EchoProgram
from tests.support.lab.machines import Lab
lab = Lab(Path(sys.argv[1]), EchoProgram())
lab.start()
lab.delay(1)
pids = [pid for machine in lab.nodes for pid in (machine.space.pid, machine.pid)]
print(*pids, lab._network._hub.pid, lab._network._relay.pid, flush=True)
sys.stdin.read()
"""


def kept_namespaces() -> set[str]:
    """Namespaces that something keeps although no process need live in them: mounts, and names for ``ip``."""
    named = Path("/run/netns")
    names = {str(path) for path in named.iterdir()} if named.is_dir() else set()
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    return names | {line for line in mounts if line.startswith("nsfs ")}


def everybody(lab: Lab) -> set[tuple[int, int]]:
    """Which machine reaches which other."""
    pairs = [(source, two) for source in lab.nodes for two in lab.nodes if source is not two]
    return {(source.number, two.number) for source, two in pairs if reaches(source, two, 0.3)}


ALL = {(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)}


def test_machines_reach_each_other(echoes: Lab) -> None:
    """Each machine of a healthy lab reaches each other one at its own address."""
    assert everybody(echoes) == ALL


def test_a_cut_is_between_two(echoes: Lab) -> None:
    """A cut ends what passes between two machines and nothing else, and heals."""
    first, second, _ = echoes.nodes
    echoes.cut(first, second)
    assert everybody(echoes) == ALL - {(0, 1), (1, 0)}
    echoes.heal()
    assert everybody(echoes) == ALL


def test_a_one_way_cut_lets_the_other_way_pass(echoes: Lab) -> None:
    """Datagrams pass against a one-way cut and not along it."""
    first, second, third = echoes.nodes
    echoes.cut_one_way(first, second)
    assert not datagram_arrives(first, second.address, echoes)
    assert datagram_arrives(second, first.address, echoes)
    assert datagram_arrives(first, third.address, echoes)


def datagram_arrives(sender: object, receiver_address: str, lab: Lab) -> bool:
    """Whether one of a few datagrams from a machine reaches another."""
    machine = next(node for node in lab.nodes if node is sender)
    receiver = next(node for node in lab.nodes if node.address == receiver_address)
    listens = (
        "import socket,sys; s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.settimeout(0.5)\n"
        f"s.bind(('{receiver_address}',7001)); print('bound',flush=True)\n"
        "try: print(s.recv(9).decode())\nexcept TimeoutError: print('nothing')"
    )
    sends = (
        "import socket; s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\n"
        f"s.sendto(b'hello',('{receiver_address}',7001))"
    )
    with subprocess.Popen(
        receiver.space.inside(sys.executable, "-S", "-E", "-c", listens), stdout=subprocess.PIPE, text=True
    ) as waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == "bound\n"
        machine.runs(sys.executable, "-S", "-E", "-c", sends)
        return waiting.stdout.read() == "hello\n"


def test_an_isolated_machine_is_alone(echoes: Lab) -> None:
    """Nothing passes between an isolated machine and the others, who still reach each other."""
    echoes.isolate(echoes.nodes[0])
    assert everybody(echoes) == {(1, 2), (2, 1)}


def test_delay_is_added_both_ways(echoes: Lab) -> None:
    """With a delay, opening a connection and a round trip on it take at least four delays."""
    first, second, _ = echoes.nodes
    echoes.delay(DELAY_MS)
    late = int(asked(first, second).split()[1])
    assert late >= 4 * DELAY_MS * 1_000_000
    echoes.heal()
    assert everybody(echoes) == ALL


def test_loss_loses_some(echoes: Lab) -> None:
    """With heavy loss some datagrams arrive and some do not, and connections come through late."""
    first, second, _ = echoes.nodes
    echoes.loss(LOSS_PERCENT)
    arrived = [datagram_arrives(first, second.address, echoes) for _ in range(12)]
    assert True in arrived
    assert False in arrived
    assert reaches(first, second, 30)
    echoes.heal()
    assert everybody(echoes) == ALL


def test_a_frozen_machine_answers_nobody_and_goes_on(echoes: Lab) -> None:
    """A frozen machine does not answer; thawed, it is the same process and answers."""
    first, second, _ = echoes.nodes
    before = first.pid
    echoes.freeze(first)
    assert not reaches(second, first, 0.3)
    echoes.heal()
    assert reaches(second, first)
    assert first.pid == before


def test_a_killed_machine_comes_back_at_its_address(echoes: Lab) -> None:
    """A killed program is gone at once; started again it is another process at the same address."""
    first, second, _ = echoes.nodes
    before = first.pid
    echoes.kill(first)
    assert not exists(before)
    assert not reaches(second, first, 0.3)
    echoes.restart(first)
    assert first.pid != before
    assert reaches(second, first)


def test_a_full_disk_is_one_machines(tmp_path: Path) -> None:
    """A filled disk takes nothing more, others' disks do, and healed it takes again."""
    try:
        lab = Lab(tmp_path, EchoProgram(), 2, disk_bytes=DISK_BYTES)
    except NotHereError as error:
        pytest.skip(str(error))
    with lab:
        first, second = lab.nodes
        lab.fill_disk(first)
        with pytest.raises(OSError, match="No space"):
            (first.seen_data / "file").write_bytes(b"x" * 8192)
        (second.seen_data / "file").write_bytes(b"x" * 8192)
        lab.heal()
        (first.seen_data / "file").write_bytes(b"x" * 8192)
    assert not any((tmp_path / "n1" / "data").iterdir()), "the mount was the lab's only"


def test_a_clock_is_one_machines(echoes: Lab) -> None:
    """A machine that is started again with a shifted clock has another time than its neighbours."""
    try:
        faketime()
    except NotHereError as error:
        pytest.skip(str(error))
    first, second, _ = echoes.nodes
    echoes.restart(first, clock_offset_s=OFFSET_S)
    here, there = (int(asked(machine, machine).split()[2]) for machine in (first, second))
    assert here - there > (OFFSET_S - 60) * 1_000_000_000


def test_nothing_is_left_of_a_lab(tmp_path: Path) -> None:
    """After a lab, no process is there, and nothing that keeps a namespace."""
    before = kept_namespaces()
    try:
        lab = Lab(tmp_path, EchoProgram())
    except NotHereError as error:
        pytest.skip(str(error))
    with lab:
        lab.start()
        lab.delay(1)
        lab.freeze(lab.nodes[1])
        pids = [pid for machine in lab.nodes for pid in (machine.space.pid, machine.pid)]
        assert all(map(exists, pids))
    assert not any(map(exists, pids))
    assert kept_namespaces() <= before


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_of_a_lab_that_was_ended(tmp_path: Path, number: signal.Signals) -> None:
    """When whoever runs a lab is killed, all of it ends by itself."""
    try:
        MachineNamespaces("tried").close()
    except NotHereError as error:
        pytest.skip(str(error))
    before = kept_namespaces()
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support" / "programs")])
    with subprocess.Popen(
        [sys.executable, "-c", STRANDED, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path},
        text=True,
    ) as lab:
        assert lab.stdout is not None
        pids = [int(word) for word in lab.stdout.readline().split()]
        assert all(map(exists, pids))
        assert pids
        lab.send_signal(number)
    wait_until(lambda: not any(map(exists, pids)), "all of the lab is gone")
    assert kept_namespaces() <= before


def test_a_lab_is_made_of_nothing_that_was_there(echoes: Lab) -> None:
    """The devices of whoever runs the lab are the same before, during and after it."""
    own = {entry.name for entry in Path("/sys/class/net").iterdir()}
    assert "br0" not in own
    assert not {f"p{machine.number}" for machine in echoes.nodes} & own

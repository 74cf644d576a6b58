"""Real nodes, each on its own machine of the lab, and every fault that the network, a disk or a clock has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.support.lab.daemons import DaemonProgram, clusters_are_here, logs, person, wait_agreement
from tests.support.lab.machines import Lab, Machine, faketime
from tests.support.lab.namespaces import NotHereError
from tests.support.lab.promises import LARGE, Answer, Ledger

DISK_BYTES: Final = 96 << 20
DELAY_MS: Final = 200
LOSS_PERCENT: Final = 5
CLOCK_OFFSET_S: Final = 3600


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Lab]:
    """Three nodes that know each other, each with a small disk of its own."""
    try:
        clusters_are_here()
        lab = Lab(tmp_path, DaemonProgram(), disk_bytes=DISK_BYTES)
    except NotHereError as error:
        pytest.skip(str(error))
    with lab:
        try:
            lab.start()
            wait_agreement(lab)
            yield lab
        except BaseException:
            print(logs(lab))  # noqa: T201 - pytest shows it with the failure
            raise


def cut(lab: Lab) -> None:
    """Nothing passes between the first and the third."""
    lab.cut(lab.nodes[0], lab.nodes[2])


def cut_towards(lab: Lab) -> None:
    """The first does not reach the third, but hears it."""
    lab.cut_one_way(lab.nodes[0], lab.nodes[2])


def cut_from(lab: Lab) -> None:
    """The first reaches the third, but does not hear it."""
    lab.cut_one_way(lab.nodes[2], lab.nodes[0])


def isolated(lab: Lab) -> None:
    """The third is alone."""
    lab.isolate(lab.nodes[2])


def slow(lab: Lab) -> None:
    """Every frame is late."""
    lab.delay(DELAY_MS)


def lossy(lab: Lab) -> None:
    """Some frames never arrive."""
    lab.loss(LOSS_PERCENT)


def frozen(lab: Lab) -> None:
    """The third stands still."""
    lab.freeze(lab.nodes[2])


def killed(lab: Lab) -> None:
    """The third is killed."""
    lab.kill(lab.nodes[2])


def full(lab: Lab) -> None:
    """The third's disk takes nothing more."""
    lab.fill_disk(lab.nodes[2])


def misdated(lab: Lab) -> None:
    """The third lives an hour ahead of the others."""
    try:
        faketime()
    except NotHereError as error:
        pytest.skip(str(error))
    lab.restart(lab.nodes[2], clock_offset_s=CLOCK_OFFSET_S)
    wait_agreement(lab)


@dataclass(frozen=True)
class Fault:
    """What is done, whether the third can answer people, and what may be said of objects on it."""

    cause: Callable[[Lab], None]
    third_answers: bool = True
    on_third: frozenset[Answer] = frozenset({Answer.DONE, Answer.UNREACHABLE})
    large_on_third: frozenset[Answer] = frozenset()
    """The same for what is too large for the index of the store; nothing: no other than for what is small."""
    others_must: bool = True


FAULTS: Final = {
    "cut": Fault(cut),
    "one way towards": Fault(cut_towards),
    "one way from": Fault(cut_from),
    "isolated": Fault(isolated, on_third=frozenset({Answer.UNREACHABLE})),
    "slow": Fault(slow, others_must=False),
    "lossy": Fault(lossy, others_must=False),
    "frozen": Fault(frozen, third_answers=False, on_third=frozenset({Answer.UNREACHABLE})),
    "killed": Fault(killed, third_answers=False, on_third=frozenset({Answer.UNREACHABLE})),
    # What is small may find room in pages that the store had already.
    "full": Fault(
        full, on_third=frozenset({Answer.FULL, Answer.DONE}), large_on_third=frozenset({Answer.FULL})
    ),
    "misdated": Fault(misdated, on_third=frozenset({Answer.DONE})),
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.timeout(400)
@pytest.mark.extended(keep=4)
def test_every_call_is_answered_and_nothing_acknowledged_is_lost(cluster: Lab, name: str) -> None:
    """Under a fault each call ends in time and the reachable is served; healed, all have all objects."""
    fault = FAULTS[name]
    first, second, third = cluster.nodes
    ledger = Ledger(cluster)
    ledger.fill()
    ledger.fill(LARGE)

    fault.cause(cluster)
    for machine in (first, second, third) if fault.third_answers else (first, second):
        check_calls(ledger, fault, machine, cluster)

    cluster.heal()
    if third.process is None:
        cluster.restart(third)
    wait_agreement(cluster)
    ledger.wait_all_there()
    ledger.wait_references_agree()


def check_calls(ledger: Ledger, fault: Fault, machine: Machine, lab: Lab) -> None:
    """A client of one node uses all nodes, the third twice: an error must not spoil what comes after it."""
    third = lab.nodes[2]
    with person(machine) as session:
        for home in (third, *lab.nodes):
            known = ledger.one_of(home)
            read = ledger.reads(session, known)
            created = ledger.creates(session, home)
            large = ledger.creates(session, home, LARGE)
            if home is machine and home is not third:
                assert (read, created, large) == (Answer.DONE,) * 3, "what is here is always reached"
            elif home is third and machine is not third:
                assert created in fault.on_third, f"{machine.name} on {home.name}"
                assert large in (fault.large_on_third or fault.on_third), f"{machine.name} on {home.name}"
            elif fault.others_must and third not in {home, machine}:
                assert (read, created) == (Answer.DONE,) * 2, f"{machine.name} reaches {home.name}"


@pytest.mark.timeout(200)
def test_a_node_that_was_cut_off_is_taken_for_dead_and_comes_back(cluster: Lab) -> None:
    """A node that nobody hears is dead for the others, and they for it; healed, all see all again."""
    third = cluster.nodes[2]
    cluster.isolate(third)
    wait_agreement_without(cluster, third)
    cluster.heal()
    wait_agreement(cluster)


def wait_agreement_without(lab: Lab, lost: Machine) -> None:
    """Wait until the others see a lost one as dead; it may see what it likes."""
    wait_agreement(lab, dead=(lost,))


@pytest.mark.timeout(200)
def test_no_node_is_special(cluster: Lab) -> None:
    """Without the node that made the cluster, the others serve each other; it comes back with all it had."""
    first, second, third = cluster.nodes
    ledger = Ledger(cluster)
    ledger.fill()
    cluster.kill(first)
    wait_agreement(cluster, dead=(first,))
    with person(second) as session:
        assert ledger.reads(session, ledger.one_of(third)) is Answer.DONE
        assert ledger.creates(session, third) is Answer.DONE
    cluster.restart(first)
    wait_agreement(cluster)
    ledger.wait_all_there()


@pytest.mark.timeout(300)
def test_a_flapping_network_leaves_nothing_behind(cluster: Lab) -> None:
    """After many short cuts under use, all objects are there and no reference is left over."""
    first, second, _ = cluster.nodes
    ledger = Ledger(cluster)
    ledger.fill()
    with person(first) as session:
        for _ in range(5):
            cluster.cut(first, second)
            ledger.creates(session, second)
            cluster.heal()
            ledger.creates(session, second)
    wait_agreement(cluster)
    ledger.wait_all_there()
    ledger.wait_references_agree()

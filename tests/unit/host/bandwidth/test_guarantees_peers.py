"""Guarantees at data connections: on whose meter bytes go, and who waits for whom."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import trio
import trio.testing

from dios import limits
from dios.core import effects as fx
from dios.core.effects import SetRates
from dios.core.events import Received
from dios.host.bandwidth.rates import Charge, Rates
from dios.host.content.memories import ContentMemory
from dios.host.content.stored_bytes import StoredBytes
from dios.host.loop.fair_queue import TaskPrincipals
from dios.ids import BufferId, TaskId
from dios.transport.unix.server import TaskChannel
from dios.wire import dcp
from dios.wire.calls import ReadOnce, Stat, WriteOnce
from dios.wire.messages import Buffer, Govern, Guarantee, Meter, Metered, Rate
from dios.wire.rates import UNMEASURED
from dios.wire.types import Brand, Traffic
from tests.support.peers.hosts import BLOB, DEPUTY, PeerHost, connected, two_hosts, until

WHO, OTHER = "uid:1", "uid:2"
SIZE = 10 * limits.DATA_PIECE_BYTES
ASKED = Metered(0, (), UNMEASURED, 0, b"")
FAST = 2**40
MANY = limits.DATA_CONNECTIONS_MAX + 4


def edge(task: int, source: int = 0, bytes_s: int = FAST, who: str = WHO) -> Guarantee:
    """What a task reads is guaranteed."""
    return Guarantee(who, source, task, 500, ((0, bytes_s),))


def meters(rates: Rates) -> dict[tuple[str, int, Traffic], tuple[int, int]]:
    """What was moved and waits, for each that moved."""
    totals: dict[tuple[str, int, Traffic], tuple[int, int]] = {}
    for meter in rates.completed(ASKED).meters:
        assert isinstance(meter, Meter)
        totals[meter.principal, meter.task, meter.traffic] = (meter.moved, meter.waiting)
    return {key: figures for key, figures in totals.items() if any(figures)}


async def settled(host: PeerHost, wanted: dict[tuple[str, int, Traffic], tuple[int, int]]) -> None:
    """Wait until a host's meters say just this."""
    rates = host.host.rates
    await until(lambda: meters(rates) == wanted, f"{meters(rates)}, not {wanted}")


def never() -> bool:
    """The connection stands."""
    return False


class Readers:
    """Tasks of one host that read of another, and what came for them."""

    def __init__(self, here: PeerHost, there: PeerHost, principals: dict[int, str], size: int = SIZE) -> None:
        self.here, self.there, self.size = here, there, size
        self.came: list[int] = []
        self._principals = principals
        memory = ContentMemory.shadow(size).filled(bytes(size))
        assert memory.adopt(size)
        there.blob(memory)
        for task, principal in principals.items():
            there.do(fx.OpenRemoteTask(TaskId(task), here.node, principal))
        there.when_received(self._answer)
        here.when_received(self._take)

    def ask(self, task: int) -> None:
        """It reads, once."""
        asker = dcp.Caller(TaskId(task), self._principals[task], "f" * 16, Brand.PURE)
        self.here.do(fx.Send(self.there.node, dcp.Ask(task, 1, dcp.Forward(asker, ReadOnce(1)))))

    def _answer(self, event: Received) -> list[fx.Effect]:
        asked = event.message
        assert isinstance(asked, dcp.Ask)
        assert isinstance(asked.body, dcp.Forward)
        if isinstance(asked.body.call, Govern):
            return []
        buffer = Buffer(BufferId(asked.number), self.size, 1, 1)
        return [fx.AnswerRead(asked.body.caller.task, asked.number, buffer, BLOB, 0, self.size)]

    def _take(self, event: Received) -> list[fx.Effect]:
        if isinstance(event.message, dcp.PeerReply) and isinstance(event.message.result, Buffer):
            assert event.attached in (0, self.size), "inside the message, or beside it"
            self.came.append(event.message.number)
        return []


async def test_a_task_at_an_end_of_a_guarantee_has_a_meter_of_its_own(tmp_path: Path) -> None:
    """At both nodes, to the byte; its principal's other tasks stay on the principal's."""
    mine, sibling = DEPUTY, DEPUTY + 1
    async with two_hosts(tmp_path) as (here, there):
        await connected(here, there)
        readers = Readers(here, there, {mine: WHO, sibling: WHO})
        for host in (here, there):
            host.do(SetRates((), 60_000, guarantees=(edge(mine),)))
        for task in (mine, sibling):
            readers.ask(task)
        await until(lambda: len(readers.came) == 2, "both came")
        for host, traffic in ((there, Traffic.OUT), (here, Traffic.IN)):
            wanted = {(WHO, mine, traffic): (SIZE, 0), (WHO, 0, traffic): (SIZE, 0)}
            await settled(host, wanted)


async def test_small_readings_are_paced_too(tmp_path: Path) -> None:
    """While guarantees hold, bytes that would go inside a message take a data connection and are counted."""
    async with two_hosts(tmp_path) as (here, there):
        await connected(here, there)
        readers = Readers(here, there, {DEPUTY: WHO}, limits.INLINE_BYTES_MAX + 1)
        readers.ask(DEPUTY)
        await until(lambda: readers.came, "it came")
        assert not meters(there.host.rates)
        there.do(SetRates((), 60_000, guarantees=(edge(1),)))
        readers.ask(DEPUTY)
        await until(lambda: len(readers.came) == 2, "it came again")
        readings = meters(there.host.rates)
        assert readings == {(WHO, 0, Traffic.OUT): (limits.INLINE_BYTES_MAX + 1, 0)}


async def test_who_reads_small_pieces_is_held_up_too(tmp_path: Path) -> None:
    """What goes inside answers is counted and paid for: further requests of that account wait, no others."""
    task, other = DEPUTY, DEPUTY + 1
    async with two_hosts(tmp_path) as (here, there):
        await connected(here, there)
        readers = Readers(here, there, {task: WHO, other: OTHER}, limits.INLINE_BYTES_MAX - 1_000)
        there.do(SetRates((Rate(WHO, Traffic.OUT, 1),), 60_000, guarantees=(edge(1),)))
        readers.ask(task)
        await until(lambda: readers.came == [task], "one came")
        moved, waiting = meters(there.host.rates)[WHO, 0, Traffic.OUT]
        assert 0 < moved - readers.size < 1_000
        assert not waiting
        readers.ask(task)
        readers.ask(other)
        await until(lambda: readers.came == [task, other], "another's came")
        assert len(there.core.seen(Received)) == 2, "this one was not taken"
        coordinator = dcp.Caller(TaskId(DEPUTY + 2), WHO, "f" * 16, Brand.PURE)
        here.do(fx.Send(there.node, dcp.Ask(9, 1, dcp.Forward(coordinator, Govern()))))
        await until(lambda: len(there.core.seen(Received)) == 3, "who tells rates is not held up")
        there.do(SetRates((), 60_000))
        await until(lambda: readers.came == [task, other, task], "it came")


async def test_whom_something_is_guaranteed_waits_for_nobodys_turn(tmp_path: Path) -> None:
    """More slow principals than connections have transfers; two guaranteed tasks go past them all."""
    promised = (DEPUTY, DEPUTY + 1)
    principals = dict.fromkeys(promised, WHO) | {DEPUTY + 10 + n: f"uid:{100 + n}" for n in range(MANY)}
    async with two_hosts(tmp_path) as (here, there):
        await connected(here, there)
        readers = Readers(here, there, principals)
        slow = tuple(Rate(who, Traffic.OUT, 1) for who in set(principals.values()) - {WHO})
        there.do(SetRates(slow, 60_000, guarantees=tuple(map(edge, promised))))
        for task in principals:
            if task not in promised:
                readers.ask(task)
        await until(lambda: len(meters(there.host.rates)) >= MANY, "all wait or are under way")
        for task in promised:
            readers.ask(task)
        await until(lambda: len(readers.came) >= 2, "they came")
        assert set(readers.came) == set(promised)
        there.do(SetRates((), 60_000))
        await until(lambda: len(readers.came) == len(principals), "without guarantees all of it comes")


def test_what_is_on_its_way_changes_its_account_with_the_guarantees() -> None:
    """The rest of a transfer is on the account that its task has then; nothing is lost or counted twice."""
    rates = Rates((10**9, 10**9, 0))
    charge = Charge(rates, WHO, Traffic.OUT, 100, TaskId(7))
    charge.went(10)
    rates.set(SetRates((), 60_000, guarantees=(edge(7),)))
    charge.went(20)
    assert meters(rates) == {(WHO, 0, Traffic.OUT): (10, 0), (WHO, 7, Traffic.OUT): (20, 70)}
    rates.set(SetRates((), 60_000))
    charge.went(5)
    charge.close()
    assert meters(rates) == {(WHO, 0, Traffic.OUT): (15, 0), (WHO, 7, Traffic.OUT): (20, 0)}
    rates.set(SetRates((), 60_000))
    assert meters(rates) == {(WHO, 0, Traffic.OUT): (15, 0)}, "a task that is not named any more is forgotten"


def test_nobody_uses_anothers_guarantee() -> None:
    """A task id in the name of another principal is on that principal's account."""
    rates = Rates((10**9, 10**9, 0))
    rates.set(SetRates((), 60_000, guarantees=(edge(7),)))
    assert rates.account(TaskId(7), WHO) == (WHO, 7)
    assert rates.account(TaskId(7), OTHER) == OTHER
    assert rates.account(TaskId(8), WHO) == WHO


def test_nobody_is_held_up_without_guarantees() -> None:
    """Before they are told and after their lease pieces are whole, nobody is paced, and nothing waits."""
    now = [0]
    rates = Rates((1, 1, 1), now=lambda: now[0])

    def free() -> bool:
        charge = Charge(rates, WHO, Traffic.OUT, SIZE, TaskId(7))
        whole = charge.piece() == limits.DATA_PIECE_BYTES
        took = charge.take(SIZE, never) and charge.take(SIZE, never)
        charge.close()
        return whole and took and not rates.paced(WHO, Traffic.OUT) and not rates.hold

    assert free()
    rates.set(SetRates((), 1_000, guarantees=(edge(7),)))
    assert rates.paced(WHO, Traffic.OUT)
    assert rates.paced(OTHER, Traffic.OUT)
    assert not rates.paced(WHO, Traffic.STORE)
    now[0] = 1_000 * 1_000_000
    charge = Charge(rates, OTHER, Traffic.OUT, SIZE)
    assert charge.take(SIZE, never)
    charge.close()
    assert free()


def test_who_is_held_up_goes_on_when_guarantees_are_lifted() -> None:
    """A thread in debt that waits for its rate goes on at once, and one that need not ends."""
    rates = Rates((1, 1, 1))
    rates.set(SetRates((), 60_000, guarantees=(edge(7),)))
    ended, pause = threading.Event(), threading.Event()
    took: list[bool] = []

    def waits(condition: Callable[[], bool]) -> None:
        for _ in range(10_000):
            if condition():
                return
            pause.wait(0.001)
        raise AssertionError(took)

    def take(count: int, stop: threading.Event) -> None:
        for _ in range(count):
            took.append(rates.take(OTHER, Traffic.OUT, 2**40, stop.is_set))  # noqa: PERF401 - it is looked at

    first = threading.Thread(target=take, args=(3, ended))
    first.start()
    waits(lambda: len(took) == 1)
    rates.set(SetRates((), 60_000))
    first.join(10)
    assert took == [True] * 3
    rates.set(SetRates((), 60_000, guarantees=(edge(7),)))
    second = threading.Thread(target=take, args=(2, ended))
    second.start()
    waits(lambda: len(took) == 4)
    ended.set()
    rates.wake()
    second.join(10)
    assert took == [True] * 4 + [False]


@pytest.mark.parametrize("call", [WriteOnce(1, b"x"), Stat(1)], ids=["stores", "stores nothing"])
async def test_who_writes_small_pieces_to_afar_is_held_up_at_its_own_node(call: WriteOnce | Stat) -> None:
    """Its next call that stores waits until what went inside messages is paid; other calls do not."""
    rates, owners = Rates((10**9, 10**9, 0)), TaskPrincipals()
    owners.add(TaskId(7), WHO)
    rates.set(SetRates((Rate(WHO, Traffic.OUT, 1),), 60_000, guarantees=(edge(1),)))
    rates.spend_inline(WHO, 10**6)
    passed = False
    near, far = socket.socketpair()
    with near, far:

        async def ask() -> None:
            nonlocal passed
            await StoredBytes(rates, owners).wait_for_credit(TaskId(7), call, cast("TaskChannel", near))
            passed = True

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            assert passed is isinstance(call, Stat)
            rates.set(SetRates((), 60_000))
    assert passed

"""Rates at data connections: on whose meter bytes go, and who waits for whom."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from dios import limits
from dios.core import effects as fx
from dios.core.effects import SetRates
from dios.core.events import PeerDown, Received, UnderWay
from dios.errors import Code
from dios.host.content.memories import ContentMemory
from dios.ids import BufferId, TaskId
from dios.wire import dcp
from dios.wire.messages import (
    AcquireWrite,
    Buffer,
    Create,
    Failure,
    Meter,
    Metered,
    PlainCall,
    Rate,
    ReadOnce,
    Stat,
    Vector,
    WriteOnce,
)
from dios.wire.rates import UNMEASURED
from dios.wire.types import Brand, ObjectType, Traffic
from tests.support.host.harness import TASK
from tests.support.peers.hosts import BLOB, DEPUTY, PeerHost, connected, two_hosts, until

GREEDY, MODEST = "uid:1", "uid:2"
NEIGHBOUR, MORE, STILL_MORE = TaskId(DEPUTY + 1), TaskId(DEPUTY + 2), TaskId(DEPUTY + 3)
PRINCIPALS = {DEPUTY: GREEDY, MORE: GREEDY, STILL_MORE: GREEDY, NEIGHBOUR: MODEST}
SIZE = 10 * limits.DATA_PIECE_BYTES
ASKED = Metered(0, (), UNMEASURED, 0, b"")


def meters(host: PeerHost) -> dict[tuple[str, Traffic], tuple[int, int]]:
    """What a host tells, through its answer to a task."""
    host.channel.replies.clear()
    host.do(fx.Answer(TASK, 1, ASKED))
    (answer,) = host.results()
    assert isinstance(answer, Metered)
    return {(meter.principal, meter.traffic): (meter.moved, meter.waiting) for meter in answer.meters}


def caller(task: TaskId) -> dcp.Caller:
    """One of the two, as its node tells of it."""
    return dcp.Caller(task, PRINCIPALS[task], "f" * 16, Brand.PURE)


async def settled(host: PeerHost, traffic: Traffic, moved: dict[str, int]) -> None:
    """Wait until a host's meters say that just this was moved, and nothing waits."""
    wanted = {(principal, traffic): (size, 0) for principal, size in moved.items()}
    await until(lambda: meters(host) == wanted, f"{meters(host)}, not {wanted}")


def filled(host: PeerHost, size: int = SIZE) -> None:
    """Let the object have so many bytes."""
    memory = ContentMemory.shadow(size).filled(bytes(size))
    assert memory.adopt(size)
    host.blob(memory)


def asked_of(host: PeerHost) -> list[dcp.Ask]:
    """The requests that a host has received."""
    return [message for message in host.messages() if isinstance(message, dcp.Ask)]


class Readers:
    """Tasks of one host that read from another, and what has come for them."""

    def __init__(self, here: PeerHost, there: PeerHost) -> None:
        self.here, self.there = here, there
        self.came: list[TaskId] = []
        self._asked: dict[int, TaskId] = {}
        filled(there)
        for task, principal in PRINCIPALS.items():
            there.do(fx.OpenRemoteTask(task, here.node, principal))
        there.when_received(self._answer)
        here.when_received(self._take)

    def ask(self, number: int, task: TaskId) -> None:
        """One more read."""
        self._asked[number] = task
        body = dcp.Forward(caller(task), ReadOnce(1))
        self.here.do(fx.Send(self.there.node, dcp.Ask(number, 1, body)))

    def _answer(self, event: Received) -> list[fx.Effect]:
        asked = event.message
        assert isinstance(asked, dcp.Ask)
        assert isinstance(asked.body, dcp.Forward)
        buffer = Buffer(BufferId(asked.number), SIZE, 1, 1)
        return [fx.AnswerRead(asked.body.caller.task, asked.number, buffer, BLOB, 0, SIZE)]

    def _take(self, event: Received) -> list[fx.Effect]:
        if isinstance(event.message, dcp.PeerReply) and isinstance(event.message.result, Buffer):
            assert event.attached == SIZE
            self.came.append(self._asked[event.message.number])
        return []


async def test_bytes_read_of_another_node_are_the_readers(tmp_path: Path) -> None:
    """What is sent in answer is metered for whom it goes, at both nodes, to the byte."""
    async with two_hosts(tmp_path) as (here, there):
        await connected(here, there)
        readers = Readers(here, there)
        for number, task in enumerate((DEPUTY, NEIGHBOUR, DEPUTY, DEPUTY), 1):
            readers.ask(number, task)
        await until(lambda: len(readers.came) == 4, "all came")
        await settled(there, Traffic.OUT, {GREEDY: 3 * SIZE, MODEST: SIZE})
        await settled(here, Traffic.IN, {GREEDY: 3 * SIZE, MODEST: SIZE})


async def test_bytes_beside_a_request_are_the_callers(tmp_path: Path) -> None:
    """What goes beside a call is metered for its caller, at both nodes; what is inside a message is not."""
    async with two_hosts(tmp_path) as (here, there):
        await connected(here, there)
        here.host.owners.add(DEPUTY, GREEDY)
        filled(here)
        body = dcp.Forward(caller(DEPUTY), ReadOnce(1))
        here.ask(there, body, fx.WriteSource(content_of=BLOB, length=SIZE))
        here.do(fx.Send(there.node, dcp.Ask(2, 1, body), fx.WriteSource(content_of=BLOB, length=5)))
        await until(lambda: len(there.core.seen(Received)) == 2, "both arrived")
        await settled(here, Traffic.OUT, {GREEDY: SIZE})
        await settled(there, Traffic.IN, {GREEDY: SIZE})


@pytest.mark.parametrize("modest_bytes_s", [0, 2**40])
async def test_a_slow_principal_keeps_no_other_waiting(tmp_path: Path, modest_bytes_s: int) -> None:
    """Whose many tasks have large transfers and a low rate has one at a time; another's go past them all.

    Whether that one has a rate of its own or none. When the rates are lifted everything goes.
    """
    async with two_hosts(tmp_path) as (here, there):
        await connected(here, there)
        readers = Readers(here, there)
        slow = Rate(GREEDY, Traffic.OUT, limits.RATE_BYTES_S_MIN)
        modest = (Rate(MODEST, Traffic.OUT, modest_bytes_s),) if modest_bytes_s else ()
        there.do(fx.SetRates((slow, *modest), 60_000))
        for number in range(1, 9):
            readers.ask(number, (DEPUTY, MORE, STILL_MORE)[number % 3])
        await until(lambda: meters(there).get((GREEDY, Traffic.OUT), (0, 0))[0], "it has begun")
        for number in range(9, 12):
            readers.ask(number, NEIGHBOUR)
        await until(lambda: readers.came == [NEIGHBOUR] * 3, "the modest one has all it asked for")
        moved, waiting = meters(there)[GREEDY, Traffic.OUT]
        assert moved < SIZE
        assert moved + waiting == 8 * SIZE, "what it wants is seen"
        there.do(fx.SetRates((), 60_000))
        await until(lambda: len(readers.came) == 11, "without rates all of it comes")
        await settled(there, Traffic.OUT, {GREEDY: 8 * SIZE, MODEST: 3 * SIZE})


@pytest.mark.parametrize("inline", [False, True])
async def test_a_task_that_read_more_than_its_rate_waits(tmp_path: Path, *, inline: bool) -> None:
    """Its next request waits, and is repeated by nobody; those of another task of its user do not."""
    async with two_hosts(tmp_path) as (here, there):
        await connected(here, there)
        readers = Readers(here, there)
        for task in (DEPUTY, MORE):
            here.host.owners.add(task, GREEDY)
        here.host.rates.limit_task(DEPUTY, limits.RATE_BYTES_S_MIN)
        if inline:
            there.when_received(lambda _: [])
            body = dcp.Forward(caller(DEPUTY), ReadOnce(1))
            filled(here)
            here.ask(there, body, fx.WriteSource(content_of=BLOB, length=limits.DCP_INLINE_BYTES_MAX))
            await until(there.messages, "it is there")
        else:
            readers.ask(1, DEPUTY)
            await until(lambda: readers.came == [DEPUTY], "what it read came at once")
        received = len(there.messages())
        readers.ask(2, DEPUTY)
        readers.ask(2, DEPUTY)
        readers.ask(3, MORE)
        await until(lambda: len(there.messages()) > received, "the other's request is there")
        assert [message.number for message in asked_of(there)[received:]] == [3]
        assert [event.number for event in here.core.seen(UnderWay)] == [2]
        here.host.rates.end_task(DEPUTY)
        await until(lambda: len(there.messages()) == received + 2, "nobody waits for a task that has ended")


async def test_an_answer_inside_a_message_counts_for_the_readers_rate(tmp_path: Path) -> None:
    """Bytes too few for a data connection are a debt of the task that asked for them, too."""
    async with two_hosts(tmp_path) as (here, there):
        await connected(here, there)
        filled(there)
        there.do(fx.OpenRemoteTask(DEPUTY, here.node, GREEDY))
        size = limits.DCP_INLINE_BYTES_MAX
        buffer = Buffer(BufferId(1), size, 1, 1)
        there.when_received(lambda _: [fx.AnswerRead(DEPUTY, 1, buffer, BLOB, 0, size)])
        here.host.owners.add(DEPUTY, GREEDY)
        here.host.rates.limit_task(DEPUTY, limits.RATE_BYTES_S_MIN)
        here.do(fx.Send(there.node, dcp.Ask(1, 1, dcp.Forward(caller(DEPUTY), ReadOnce(1)))))
        await until(here.messages, "the answer is there")
        assert here.host.rates.is_task_in_debt(DEPUTY)


async def test_a_node_that_is_let_go_leaves_nobody_waiting(tmp_path: Path) -> None:
    """The connection ends while a transfer waits for its rate: its thread ends, and nothing waits."""
    async with two_hosts(tmp_path) as (here, there):
        await connected(here, there)
        readers = Readers(here, there)
        there.do(fx.SetRates((Rate(GREEDY, Traffic.OUT, limits.RATE_BYTES_S_MIN),), 60_000))
        for number in range(1, 4):
            readers.ask(number, DEPUTY)
        await until(lambda: meters(there).get((GREEDY, Traffic.OUT), (0, 0))[0], "it has begun")
        standing = there.links.session_of(here.node)
        assert standing is not None
        there.do(fx.HangUp(here.node, "people asked for it"))
        with trio.fail_after(limits.NODE_STOP_MS_MAX / 1000):
            await standing.wait_ended()
        assert not there.host.rates.listeners
        assert {waiting for _, waiting in meters(there).values()} == {0}


async def test_an_answer_that_comes_is_not_asked_for_again(tmp_path: Path) -> None:
    """The asking core hears of an answer's bytes when they begin, and as long as they come."""
    async with two_hosts(tmp_path) as (here, there):
        await connected(here, there)
        readers = Readers(here, there)
        there.do(fx.SetRates((Rate(GREEDY, Traffic.OUT, limits.RATE_BYTES_S_MIN),), 60_000))
        readers.ask(7, DEPUTY)
        told = await until(lambda: here.core.seen(UnderWay), "it is told")
        assert {(event.node, event.number) for event in told} == {(there.node, 7)}
        await until(lambda: len(here.core.seen(UnderWay)) > 1, "it is told again")
        assert not readers.came
        there.do(fx.SetRates((), 60_000))
        await until(lambda: readers.came, "it came")


async def test_a_request_on_its_way_is_worked_on(tmp_path: Path) -> None:
    """While its bytes come, the node that gets them says so; a repeat of it is not sent beside them."""
    async with two_hosts(tmp_path) as (here, there):
        await connected(here, there)
        here.host.owners.add(DEPUTY, GREEDY)
        filled(here)
        here.do(fx.SetRates((Rate(GREEDY, Traffic.OUT, limits.RATE_BYTES_S_MIN),), 60_000))
        body, source = dcp.Forward(caller(DEPUTY), ReadOnce(1)), fx.WriteSource(content_of=BLOB, length=SIZE)
        here.ask(there, body, source)
        await until(here.messages, "it is told")
        assert here.messages()[0] == dcp.PeerReply(1, dcp.Working())
        here.ask(there, body, source)
        assert [event.number for event in here.core.seen(UnderWay)] == [1]
        assert not there.messages()
        here.do(fx.SetRates((), 60_000))
        await until(there.messages, "it came")
        await settled(here, Traffic.OUT, {GREEDY: SIZE})
        assert len(there.messages()) == 1


def seen(host: PeerHost) -> list[tuple[TaskId, type]]:
    """The calls of other nodes that its core was told of."""
    requests = []
    for message in host.messages():
        assert isinstance(message, dcp.Ask)
        assert isinstance(message.body, dcp.Forward)
        requests.append((message.body.caller.task, type(message.body.call)))
    return requests


WRITES = (
    WriteOnce(1, b"x"),
    Create(ObjectType.DURABLE_BLOB),
    AcquireWrite(1, 5),
    Vector((Stat(1), WriteOnce(1, b""))),
)


@pytest.mark.parametrize("call", WRITES)
async def test_who_is_in_debt_stores_nothing_from_afar(tmp_path: Path, call: PlainCall | Vector) -> None:
    """What another node's task asks to store is put aside while its principal is in debt, with all behind it.

    Who asks is told that it is worked on; nobody else on that connection waits.
    """
    async with two_hosts(tmp_path) as (here, there):
        await connected(here, there)
        there.host.rates.set(SetRates((Rate(GREEDY, Traffic.STORE, limits.RATE_BYTES_S_MIN),), 60_000))
        there.host.rates.spend(GREEDY, Traffic.STORE, 10**9)

        def ask(number: int, task: TaskId, asked: PlainCall | Vector) -> None:
            here.do(fx.Send(there.node, dcp.Ask(number, 1, dcp.Forward(caller(task), asked))))

        ask(1, DEPUTY, Stat(1))
        for number, (task, asked) in enumerate(((DEPUTY, call), (DEPUTY, Stat(1)), (NEIGHBOUR, call)), 2):
            ask(number, task, asked)
        ask(2, DEPUTY, call)
        ask(9, MORE, Stat(1))
        await until(lambda: len(seen(there)) == 3, "the others' came")
        assert seen(there) == [(DEPUTY, Stat), (NEIGHBOUR, type(call)), (MORE, Stat)]
        await until(here.messages, "it is told")
        assert here.messages() == [dcp.PeerReply(2, dcp.Working())]
        there.core.events.clear()
        there.do(fx.SetRates((), 60_000))
        await until(lambda: len(seen(there)) == 2, "the rest comes")
        assert seen(there) == [(DEPUTY, type(call)), (DEPUTY, Stat)]


async def test_who_owes_for_records_asks_nothing_from_afar(tmp_path: Path) -> None:
    """Every kind of request of a task whose principal owes for audit records waits until that is paid."""
    async with two_hosts(tmp_path) as (here, there):
        await connected(here, there)
        charges = there.host.charges
        charges.charge(GREEDY, DEPUTY, 10 * limits.AUDIT_BURST_S * limits.AUDIT_RATE_BYTES_S_DEFAULT)
        resolve = dcp.Resolve(caller(DEPUTY), (), 1)
        here.do(fx.Send(there.node, dcp.Ask(1, 1, resolve)))
        here.do(fx.Send(there.node, dcp.Ask(2, 1, dcp.Forward(caller(DEPUTY), Stat(1)))))
        here.do(fx.Send(there.node, dcp.Ask(3, 1, dcp.Forward(caller(NEIGHBOUR), Stat(1)))))
        await until(lambda: seen(there), "the neighbour's came")
        assert seen(there) == [(NEIGHBOUR, Stat)]
        charges._accounts.clear()
        charges._indebted.clear()
        charges.any_debts = False
        await until(lambda: len(there.messages()) == 3, "the rest comes")
        assert [message.number for message in there.messages() if isinstance(message, dcp.Ask)] == [3, 1, 2]


async def test_what_is_put_aside_is_bounded_and_goes_with_its_node(tmp_path: Path) -> None:
    """Over the bound a request is refused; when the node that asked is gone, so is what it asked."""
    async with two_hosts(tmp_path) as (here, there):
        await connected(here, there)
        there.host.rates.set(SetRates((Rate(GREEDY, Traffic.STORE, limits.RATE_BYTES_S_MIN),), 60_000))
        there.host.rates.spend(GREEDY, Traffic.STORE, 10**9)
        for number in range(1, limits.HELD_REQUESTS_MAX + 2):
            here.do(fx.Send(there.node, dcp.Ask(number, 1, dcp.Forward(caller(DEPUTY), WriteOnce(1, b"x")))))
        (refused,) = await until(here.messages, "one is refused")
        assert isinstance(refused, dcp.PeerReply)
        assert refused.number == limits.HELD_REQUESTS_MAX + 1
        assert isinstance(refused.result, Failure)
        assert refused.result.code == Code.EAGAIN
        here.do(fx.HangUp(there.node, "people asked for it"))
        await until(lambda: there.core.seen(PeerDown), "it is gone")
        there.do(fx.SetRates((), 60_000))
        await until(lambda: {waiting for _, waiting in meters(there).values()} <= {0}, "nothing waits")
        assert not seen(there)


def test_a_meter_is_no_name() -> None:
    """Nothing in a meter could tell of an object: a principal, a traffic, two numbers, the id of a task."""
    assert Meter.__struct_fields__ == ("principal", "traffic", "moved", "waiting", "task")

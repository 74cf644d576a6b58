from __future__ import annotations

import trio
import trio.testing

from dios.host.handover.gate import Gate


async def reader(gate: Gate, receive: trio.MemoryReceiveChannel[int], received: list[int]) -> None:
    """Receive numbers, except while the gate is closed."""
    while True:
        with gate.passing() as scope:
            while True:
                received.append(await receive.receive())
        assert scope.cancelled_caught  # type: ignore[unreachable] # the block ends with the scope
        await gate.wait_open()


async def test_a_closed_gate_stops_readers_and_loses_nothing() -> None:
    """What arrives while the gate is closed is read when it is open again."""
    gate, received = Gate(), list[int]()
    send, receive = trio.open_memory_channel[int](10)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader, gate, receive, received)
        await trio.testing.wait_all_tasks_blocked()
        send.send_nowait(1)
        await trio.testing.wait_all_tasks_blocked()
        gate.close()
        await trio.testing.wait_all_tasks_blocked()
        assert gate.readers == 0
        send.send_nowait(2)
        await trio.testing.wait_all_tasks_blocked()
        assert received == [1]
        gate.open()
        await trio.testing.wait_all_tasks_blocked()
        assert received == [1, 2]
        nursery.cancel_scope.cancel()


async def test_the_end_of_its_source_lets_a_reader_go_on() -> None:
    """A reader of a source that has ended is not stopped, and no longer waits."""
    gate, ended = Gate(), trio.Event()
    gate.close()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(gate.wait_open, ended)
        await trio.testing.wait_all_tasks_blocked()
        assert nursery.child_tasks
        ended.set()
    with gate.passing(ended) as scope:
        await trio.lowlevel.checkpoint()
    assert not scope.cancelled_caught

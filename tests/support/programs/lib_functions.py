"""Functions that tests spawn: their module's text is what travels to the tasks."""

from __future__ import annotations

from dataclasses import dataclass

import dios
from dios.client.sync.node import Reference
from dios.lib.channels import Receiver, Sender
from dios.lib.clock import LamportClock, Stamp
from dios.lib.keyvalue import open_store
from dios.lib.mutex import Mutex
from dios.lib.spawn import narrowed, spawn


@dataclass
class Point:
    """A record that travels."""

    x: int
    y: int


def mirrored(point: Point) -> Point:
    """A record in and a record out."""
    return Point(-point.x, point.y)


def joined(words: tuple[str, ...], *, separator: str = " ") -> str:
    """A tuple stays one, and keywords arrive."""
    assert isinstance(words, tuple)
    return separator.join(words)


def liar() -> int:
    """Promises a number."""
    return "no number"  # type: ignore[return-value]


def failing() -> None:
    """Ends with an exception."""
    raise ValueError("so it goes")


def forever() -> None:
    """Waits until it is ended."""
    dios.connect().next_event()


def numbers(sender: Sender[int], count: int) -> None:
    """Send the numbers below ``count``."""
    for number in range(count):
        sender.send(number)


def wrong_numbers(sender: Sender[str]) -> None:
    """Send text into what the caller made for numbers."""
    sender.send("one")


def total(receiver: Receiver[int]) -> int:
    """Add up what comes."""
    return sum(receiver)


def relayed(receiver: Receiver[int]) -> int:
    """Hand an end on to a task of one's own."""
    return spawn(total, receiver).result(30)


def silent(sender: Sender[int]) -> None:
    """Never use the end that it was given."""
    del sender


def holding(sender: Sender[int]) -> None:
    """Have an end, and neither use nor let go of it."""
    dios.connect().console.send(b"here")
    dios.connect().next_event()
    sender.close()


def rights(reference: Reference) -> int:
    """What was handed over."""
    return int(reference.permissions)


def attempts(reference: Reference) -> list[str]:
    """What a task with one readable reference can do."""
    node = dios.connect()
    told = [str(len(node.inputs)), str(int(node.inputs[0].permissions)), reference.read_bytes().decode()]
    try:
        reference.write_bytes(b"changed")
    except dios.DiosError as error:
        told.append(type(error).__name__)
    return told


def half_of(reference: Reference) -> int:
    """Hand less than one has to a task of one's own."""
    return spawn(rights, narrowed(reference, "read")).result(30)


def fibonacci(n: int) -> int:
    """Each call a task of its own."""
    if n < 2:
        return n
    smaller, two = spawn(fibonacci, n - 2), spawn(fibonacci, n - 1)
    return smaller.result() + two.result()


# -- the mutex ----------------------------------------------------------------------------------------
def add_under_lock(lock: Reference, counter: Reference, times: int) -> int:
    """Read, add one and write, as nobody can do safely without the lock."""
    for _ in range(times):
        with Mutex(lock, timeout=60):
            value = int.from_bytes(counter.read_bytes(), "little")
            counter.write_bytes((value + 1).to_bytes(8, "little"))
    return times


def hold_and_wait(lock: Reference, lease: float) -> None:
    """Take the lock and never let go of it."""
    Mutex(lock, lease=lease).acquire()
    dios.connect().console.send(b"held")
    dios.connect().next_event()


# -- the clock ----------------------------------------------------------------------------------------
def tick(clock: Reference, times: int) -> list[Stamp]:
    """So many events."""
    lamport = LamportClock(clock)
    return [lamport.tick() for _ in range(times)]


def pass_round(clock: Reference, receiver: Receiver[Stamp], sender: Sender[Stamp], turns: int) -> list[Stamp]:
    """Receive a stamp, have an event of one's own, and send its stamp on; answers sent and received ones."""
    lamport = LamportClock(clock)
    seen = []
    for _ in range(turns):
        came = receiver.receive(30)
        mine = lamport.observe(came)
        seen += [came, mine]
        sender.send(mine)
    return seen


# -- the key-value store ------------------------------------------------------------------------------
def fill_store(name: bytes, prefix: str, count: int) -> None:
    """Put so many values, as a member of the store's group."""
    node = dios.connect()
    store = open_store(node, node.groups[0], name)
    for turn in range(count):
        store.put(f"{prefix}/{turn}", b"%d" % turn)


def echoed(value: object) -> object:
    """Return the argument, of which the annotations say nothing."""
    return value

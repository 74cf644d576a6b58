"""One client of a soak: a process that uses every kind of call, and checks every byte that it reads.

Its tasks are in ``tasks``, its abrupt disconnects in ``abrupt_connections``.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import random
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

import dios
from dios.limits import INLINE_VALUE_BYTES_MAX
from labs.benchmarks.soak import abrupt_connections
from labs.benchmarks.soak.data import Data, digest, hex_digest
from labs.benchmarks.soak.shared_table import STOP, ClientRow, Troubles
from labs.benchmarks.soak.tasks import SoakTasks

SIZES: Final = (0, 1, 100, 4_000, 16_384, 33_000, 100_000, 1_000_000)
LARGE: Final = (40_000, 300_000, 2_000_000)
HELD_MAX: Final = 24
"""The maximum number of objects of a client; above it the client deletes one."""

START_SHARE: Final = 0.25
"""The share of operations that start a task while a client has fewer tasks than it should."""

_PR_SET_PDEATHSIG: Final = 1
_REST_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class ClientLoad:
    """The load of each client."""

    place: Path
    shared: tuple[tuple[bytes, str], ...]
    """Names of permanent objects in the home group, and the digests of their bytes."""
    tasks: int
    rate: float
    """Operations per second."""
    reconnect_s: float = 20.0


class WrongBytesError(Exception):
    """A read returned bytes that were never written there."""


@dataclass(slots=True)
class StoredObject:
    """An object and its expected content."""

    reference: dios.Reference
    data: bytes
    durable: bool = False


def fork_client(
    number: int, row: ClientRow, troubles: Troubles, phase: Callable[[], int], load: ClientLoad
) -> int:
    """Start a client in its own process, which ends with this one; return its process id."""
    seed = random.getrandbits(64)
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        gc.freeze()
        # The child must not keep the parent's connection and files open.
        os.closerange(3, 1024)
        if os.getppid() == parent:
            SoakClient(number, row, troubles, phase, load, seed).run()
        status = 0
    except BaseException:  # noqa: BLE001 - any error becomes part of the verdict
        troubles.add(f"client {number}, at {row.doing!r}", traceback.format_exc(limit=-3))
    finally:
        os._exit(status)


class SoakClient:
    """A client process that makes random calls without end."""

    def __init__(
        self,
        number: int,
        row: ClientRow,
        troubles: Troubles,
        phase: Callable[[], int],
        load: ClientLoad,
        seed: int,
    ) -> None:
        self._row: Final = row
        self._phase: Final = phase
        self._load: Final = load
        self._random: Final = random.Random(seed)  # noqa: S311 - a load, no secret
        self._data: Final = Data(self._random)
        self._who: Final = f"client {number}"
        self._troubles: Final = troubles
        self._objects: list[StoredObject] = []
        self._node: dios.Node
        self._children: SoakTasks

    # -- the main loop ------------------------------------------------------------------------------
    def run(self) -> None:
        """Work and rest until stopped."""
        while (phase := self._phase()) != STOP:
            if phase % 2:
                self._row.rests = phase
                time.sleep(_REST_S)
            else:
                self._one_session(phase)

    def _one_session(self, phase: int) -> None:
        until = time.monotonic() + self._random.uniform(0.5, 1.5) * self._load.reconnect_s
        with dios.connect(self._load.place, groups=(), label=self._who) as self._node:
            self._row.session(0, self._node.name)
            self._children = SoakTasks(self._node, self._data, self._random, self._load.tasks)
            weights = self._weights()
            names, shares = list(weights), [share for _, share in weights.values()]
            while self._phase() == phase and time.monotonic() < until:
                name = self._random.choices(names, shares)[0]
                if self._children.wanting and self._random.random() < START_SHARE:
                    name = "start task"
                with self._noted(name):
                    weights[name][0]()
                time.sleep(min(self._random.expovariate(self._load.rate), 2.0))
            with self._noted("clear away"):
                self._clear()
        self._row.cleared()
        if self._phase() == phase:
            with self._noted("reconnect"):
                pass

    @contextlib.contextmanager
    def _noted(self, name: str) -> Iterator[None]:
        self._row.begin(name)
        yield
        self._row.finished()

    def _weights(self) -> dict[str, tuple[Callable[[], None], float]]:
        children, abrupt = self._children, abrupt_connections
        place = self._load.place
        return {
            "create volatile": (self._create_volatile, 12),
            "create durable": (self._create_durable, 6),
            "update": (self._update, 10),
            "update large": (self._update_large, 2),
            "commit in conflict": (self._conflict, 3),
            "read": (self._read, 12),
            "read part": (self._read_part, 10),
            "read shared": (self._read_shared, 6),
            "look up": (self._look_up, 5),
            "look up absent": (self._look_up_absent, 4),
            "delete": (self._delete, 10),
            "group": (self._group, 2),
            "stream": (self._stream, 3),
            "vector": (self._vector, 3),
            "async face": (self._async_face, 1),
            "timer": (self._timer, 2),
            "copy": (self._copy, 3),
            "start task": (children.start, 6),
            "look at task": (children.look, 6),
            "reap task": (children.reap, 10),
            "pause task": (children.pause, 3),
            "kill task": (children.kill, 1),
            "delegate": (children.delegate, 2),
            "task stream": (children.stream, 2),
            "drop mid-frame": (lambda: abrupt.drop_mid_frame(place, self._random), 2),
            "drop with requests": (lambda: abrupt.drop_with_requests(place, self._data), 2),
            "never read replies": (lambda: abrupt.never_read(place), 0.2),
        }

    def _clear(self) -> None:
        self._children.end_all()
        for held in self._objects:
            held.reference.destroy()
        self._objects.clear()

    # -- bytes ------------------------------------------------------------------------------------
    def _check(self, got: bytes | memoryview, wanted: bytes | memoryview, subject: str) -> None:
        if bytes(got) != bytes(wanted):
            raise WrongBytesError(f"{subject}: {len(got)} bytes {hex_digest(got)}, not {hex_digest(wanted)}")

    def _keep(self, held: StoredObject) -> None:
        self._objects.append(held)
        self._count_durable()
        if len(self._objects) > HELD_MAX:
            self._delete()

    def _count_durable(self) -> None:
        self._row.durable_bytes = sum(
            len(held.data)
            for held in self._objects
            if held.durable and len(held.data) > INLINE_VALUE_BYTES_MAX
        )

    def _one(self) -> StoredObject | None:
        return self._random.choice(self._objects) if self._objects else None

    def _create_volatile(self) -> None:
        kind = self._random.choice((dios.SHMEM_BLOB, dios.PRIVMEM_BLOB))
        data = self._data.of(self._random.choice(SIZES))
        self._keep(StoredObject(self._node.create(kind, data=data), data))

    def _new_durable(self, data: bytes) -> dios.Reference:
        assert self._node.home is not None
        self._row.will_create(0)
        groups = [self._node.home]
        return self._node.create(dios.DURABLE_BLOB, groups=groups, data=data, naming=dios.DETERMINISTIC)

    def _create_durable(self) -> None:
        data = self._data.of(self._random.choice(LARGE if self._random.random() < 0.3 else SIZES[:5]))
        self._keep(StoredObject(self._new_durable(data), data, durable=True))

    def _update(self) -> None:
        held = self._one()
        if held is not None:
            data = self._data.of(self._random.choice(SIZES[:6]))
            held.reference.write_bytes(data, replace=True)
            held.data = data
            self._count_durable()

    def _update_large(self) -> None:
        held = self._one()
        if held is None:
            return
        data = self._data.of(self._random.choice(LARGE))
        with held.reference.write(len(data), dios.EXCL, blank=True, replace=True) as request:
            request.view[:] = data
            if self._random.random() < 0.5:
                request.commit()
                request.reacquire()
                request.view[:] = data = self._data.of(len(data))
        held.data = data
        self._count_durable()

    def _conflict(self) -> None:
        held = self._one()
        if held is None or not held.data:
            return
        first = held.reference.write(len(held.data), dios.MRSW)
        try:
            data = self._data.of(len(held.data))
            held.reference.write_bytes(data, replace=True)
            held.data = data
            first.view[:] = bytes(len(held.data))
            with contextlib.suppress(dios.Conflict):
                first.commit()
                raise WrongBytesError("a commit succeeded although another commit came between")
        finally:
            first.release()
        self._check(held.reference.read_bytes(), held.data, "after a conflict")

    def _read(self) -> None:
        held = self._one()
        if held is None:
            return
        if self._random.random() < 0.5:
            self._check(held.reference.read_bytes(), held.data, "all of an object")
        else:
            with held.reference.read(self._random.choice((dios.ANY, dios.MRSW, dios.EXCL))) as request:
                self._check(request.view, held.data, "a view of an object")

    def _read_part(self) -> None:
        held = self._one()
        if held is None or not held.data:
            return
        offset = self._random.randrange(len(held.data))
        size = self._random.randint(1, len(held.data) - offset)
        wanted = memoryview(held.data)[offset : offset + size]
        self._check(held.reference.read_bytes(size, offset), wanted, f"a part of {len(held.data)} bytes")

    def _read_shared(self) -> None:
        name, wanted = self._random.choice(self._load.shared)
        with contextlib.closing(self._found(name)) as reference:
            data = reference.read_bytes()
        if digest(data).hex() != wanted:
            raise WrongBytesError(f"a shared object of {len(data)} bytes is {hex_digest(data)}, not {wanted}")

    def _found(self, name: bytes) -> dios.Reference:
        reference = self._node.find(name)
        if reference is None:
            raise WrongBytesError("an existing name was not found")
        return reference

    def _look_up(self) -> None:
        durable = [held for held in self._objects if held.durable]
        if not durable:
            return
        held = self._random.choice(durable)
        assert held.reference.name is not None
        with contextlib.closing(self._found(held.reference.name)) as reference:
            self._check(reference.read_bytes(), held.data, "an object found by its name")

    def _look_up_absent(self) -> None:
        if self._node.lookup(self._random.randbytes(32)):
            raise WrongBytesError("a name that does not exist was found")

    def _delete(self) -> None:
        if self._objects:
            held = self._objects.pop(self._random.randrange(len(self._objects)))
            self._random.choice((held.reference.delete, held.reference.destroy))()
            self._count_durable()

    # -- other calls --------------------------------------------------------------------------------
    def _copy(self) -> None:
        held = self._one()
        if held is not None:
            with contextlib.closing(held.reference.copy()) as other:
                self._check(other.read_bytes(), held.data, "a copied reference")

    def _group(self) -> None:
        parents = () if self._random.random() < 0.5 else None
        if parents is None:
            # A group in the home group is durable; its name allows the run to delete it if this process is
            # killed.
            self._row.will_create(0)
            assert self._node.home is not None
            group = self._node.create(dios.GROUP, groups=[self._node.home], naming=dios.DETERMINISTIC)
        else:
            group = self._node.create_group(parents=())
        data = self._data.of(self._random.choice(SIZES[:6]))
        blob = self._node.create(dios.SHMEM_BLOB, groups=[group], data=data)
        assert group.name is not None
        assert blob.name is not None
        for groups, there in (((group.name,), True), ((), False)):
            with dios.connect(self._load.place, groups=groups) as other:
                reference = other.find(blob.name)
                if (reference is not None) is not there:
                    raise WrongBytesError(
                        "an object was found by a non-member of its group, or not by a member"
                    )
                if reference is not None:
                    self._check(reference.read_bytes(), data, "an object in a group")
        blob.destroy()
        group.destroy()

    def _stream(self) -> None:
        stream = self._node.create_stream(ring_bytes=64 * 1024)
        other = stream.copy()
        assert isinstance(other, dios.Stream)
        for _ in range(self._random.randint(1, 20)):
            message = self._data.of(self._random.choice((0, 1, 100, 30_000)))
            stream.send(message, timeout=30)
            self._check(other.receive(timeout=30), message, "a message")
        stream.close()
        if self._random.random() < 0.5:
            with contextlib.suppress(dios.EndOfStreamError):
                other.receive(timeout=30)
                raise WrongBytesError("a stream continued after its writer had closed")
        other.close()

    def _vector(self) -> None:
        many = [self._data.of(self._random.choice(SIZES[:4])) for _ in range(self._random.randint(2, 60))]
        with self._node.batch() as batch:
            pending = [batch.add(self._node.create, dios.SHMEM_BLOB, data=data) for data in many]
        with self._node.batch() as batch:
            read = [batch.add(item.result().read_bytes) for item in pending]
        for item, data in zip(read, many, strict=True):
            self._check(item.result(), data, "one object of many")
        with self._node.batch() as batch:
            for made_one in pending:
                batch.add(made_one.result().destroy)

    def _timer(self) -> None:
        with contextlib.closing(self._node.create_timer(self._random.uniform(0.001, 0.05))) as timer:
            self._node.select([timer], timeout=self._random.choice((0.001, 0.5)))

    def _async_face(self) -> None:
        trio.run(self._async_session)

    async def _async_session(self) -> None:
        async with dios.open_node(self._load.place, groups=()) as node, trio.open_nursery() as nursery:

            async def read_and_write() -> None:
                for _ in range(5):
                    data = self._data.of(self._random.choice(SIZES[1:7]))
                    async with await node.create(dios.SHMEM_BLOB, data=data) as blob:
                        self._check(await blob.read_bytes(), data, "an object read on trio")
                        async with blob.write(len(data), dios.EXCL, replace=True) as request:
                            request.view[:] = bytes(len(data))
                        self._check(await blob.read_bytes(), bytes(len(data)), "an object written on trio")

            async def cancelled_wait() -> None:
                with trio.move_on_after(0.02):
                    await node.next_event(timeout=20)

            for _ in range(4):
                nursery.start_soon(read_and_write)
            nursery.start_soon(cancelled_wait)

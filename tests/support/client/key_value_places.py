"""Places of a key-value store in memory, that can be away, and clients whose steps a test interleaves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from random import Random

from dios.errors import UnreachableError
from dios.lib.replicated_index import IndexCopy, Successors


class Crashed(BaseException):
    """A client that was killed in the middle."""


class World:
    """Machines by number: what each holds, and which are away. ``pause`` is called before each step."""

    def __init__(self, machines: int, shards: int = 1) -> None:
        self.machines = machines
        self.shards = shards
        self.away: set[int] = set()
        self.index = [[b"" for _ in range(shards)] for _ in range(machines)]
        self.further: dict[bytes, bytes] = {}
        """The content of copies that replace others, by name."""
        self.values: list[dict[bytes, bytes]] = [{} for _ in range(machines)]
        self.pause: Callable[[], None] = lambda: None
        self.names = 0

    def reach(self, machine: int) -> None:
        """One step at a machine."""
        self.pause()
        if machine in self.away:
            raise UnreachableError(f"machine {machine} is away")

    def kept(self) -> set[bytes]:
        """The names of all values anywhere."""
        return {name for values in self.values for name in values}


class MemoryCopy:
    """A copy of one part of the index on one machine."""

    def __init__(self, world: World, machine: int, shard: int) -> None:
        self.world, self.machine, self.shard = world, machine, shard

    def read(self) -> bytes:
        """All of its bytes."""
        self.world.reach(self.machine)
        return self.world.index[self.machine][self.shard]

    def update(self, change: Callable[[bytes], bytes | None]) -> None:
        """Replace its bytes, atomically."""
        self.world.reach(self.machine)
        after = change(self.world.index[self.machine][self.shard])
        if after is not None:
            self.world.index[self.machine][self.shard] = after


class FurtherCopy:
    """A copy that replaces another one, on one machine."""

    def __init__(self, world: World, machine: int, name: bytes) -> None:
        self.world, self.machine, self.name = world, machine, name

    def read(self) -> bytes:
        """All of its bytes."""
        self.world.reach(self.machine)
        return self.world.further[self.name]

    def update(self, change: Callable[[bytes], bytes | None]) -> None:
        """Replace its bytes, atomically."""
        self.world.reach(self.machine)
        after = change(self.world.further[self.name])
        if after is not None:
            self.world.further[self.name] = after


class MemoryPlaces:
    """The places of a store over a world, as a client near one machine sees them.

    The first copies are on the first ``hosts`` machines (default: all).
    """

    def __init__(self, world: World, near: int = 0, hosts: int = 0) -> None:
        self.world = world
        hosts = hosts or world.machines
        self.order = [(near + place) % hosts for place in range(hosts)]
        self.published: list[Successors] = []

    def present(self) -> list[Successors]:
        """The first copies, which have no names."""
        return [Successors(tuple(map(str, self.order)), ())] * self.world.shards

    def open_copies(self, successors: Successors) -> list[IndexCopy]:
        """Copies that replace others."""
        pairs = zip(successors.hosts, successors.copies, strict=True)
        return [FurtherCopy(self.world, int(host), name) for host, name in pairs]

    def create_copies(self, hosts: Sequence[str]) -> Successors:
        """An empty one on each of these machines."""
        names = []
        for host in hosts:
            self.world.reach(int(host))
            self.world.names += 1
            names.append(self.world.names.to_bytes(32))
            self.world.further[names[-1]] = b""
        return Successors(tuple(hosts), tuple(names))

    def destroy_copies(self, successors: Successors) -> None:
        """Those that can be reached."""
        for host, name in zip(successors.hosts, successors.copies, strict=True):
            if int(host) not in self.world.away:
                del self.world.further[name]

    def publish(self, name: bytes, shards: Sequence[Successors]) -> None:
        """Remember them."""
        self.published = list(shards)

    def copies(self) -> list[list[IndexCopy]]:
        """For each shard its copies, the nearest first."""
        return [
            [MemoryCopy(self.world, machine, shard) for machine in self.order]
            for shard in range(self.world.shards)
        ]

    def keep(self, value: bytes, hosts: Sequence[str]) -> bytes:
        """Replicate a value on a majority at least."""
        self.world.names += 1
        name = b"value %d" % self.world.names
        copies = 0
        for machine in map(int, hosts):
            try:
                self.world.reach(machine)
            except UnreachableError:
                continue
            self.world.values[machine][name] = value
            copies += 1
        if copies <= len(hosts) // 2:
            raise UnreachableError(f"{copies} machines take the value")
        return name

    def fetch(self, name: bytes) -> bytes | None:
        """From the nearest machine that has it."""
        for machine in (*self.order, *range(len(self.order), self.world.machines)):
            try:
                self.world.reach(machine)
            except UnreachableError:
                continue
            value: bytes | None = self.world.values[machine].get(name)
            if value is not None:
                return value
        return None

    def drop(self, name: bytes) -> None:
        """Everywhere within reach."""
        for machine in range(self.world.machines):
            if machine not in self.world.away:
                self.world.values[machine].pop(name, None)

    def restore(self, name: bytes, hosts: Sequence[str]) -> int:
        """On each of these machines that answers and has it not."""
        value = self.fetch(name)
        copies = 0
        for machine in map(int, hosts):
            if (
                value is not None
                and machine not in self.world.away
                and name not in self.world.values[machine]
            ):
                self.world.values[machine][name] = value
                copies += 1
        return copies


class Interleaved:
    """Runs clients in threads, one step of one client at a time, in an order that a seed decides."""

    def __init__(self, seed: int, between: Callable[[Random], None] = lambda _: None) -> None:
        self._random = Random(seed)  # noqa: S311 - an order that can be repeated
        self._between = between
        self._turn = threading.Condition()
        self._waiting: set[int] = set()
        self._running: set[int] = set()
        self._chosen = -1
        self._me = threading.local()
        self.now = 0

    def step(self) -> None:
        """Called by a client before each of its steps: wait for a turn."""
        own: int = self._me.number
        with self._turn:
            self._waiting.add(own)
            self._choose()
            self._turn.wait_for(lambda: self._chosen == own)
            self._chosen = -1
            self._waiting.discard(own)
            self.now += 1

    def _choose(self) -> None:
        """Once nobody moves any more, choose who moves next."""
        if self._chosen == -1 and self._waiting and self._waiting == self._running:
            self._between(self._random)
            self._chosen = self._random.choice(sorted(self._waiting))
            self._turn.notify_all()

    def run(self, clients: Sequence[Callable[[], None]]) -> None:
        """Run them all to their ends."""
        self._running = set(range(len(clients)))
        threads = [threading.Thread(target=self._client, args=pair) for pair in enumerate(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _client(self, number: int, client: Callable[[], None]) -> None:
        self._me.number = number
        try:
            client()
        except Crashed:
            pass
        finally:
            with self._turn:
                self._running.discard(number)
                self._choose()

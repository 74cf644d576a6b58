"""The faults of a run: of nodes, disks and the network, each over after a while."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Final

import trio

from dios.lib.kept.promises import Promises
from dios.wire.types import ObjectType
from labs.sim.kept.calls import ModelSession
from labs.sim.kept.links import ModelProgram
from labs.sim.kept.nodes import ModelCluster, ModelNode, StoredReplica
from labs.sim.kept.users import ALIAS, Users

_LOST_APART_S: Final = 40.0
"""The least time between two losses for ever: the grace time, and the time to copy a few small objects."""


class Troubles:
    """Makes trouble in one run. ``crash`` and ``restart`` end and start a node with its keeper."""

    def __init__(
        self,
        users: Users,
        crash: Callable[[ModelNode, bool], None],
        restart: Callable[[ModelNode], None],
        log: Callable[[str], None],
    ) -> None:
        self._users: Final = users
        self._cluster: Final[ModelCluster] = users.cluster
        self._random: Final[Random] = users.random
        self._crash: Final = crash
        self._restart: Final = restart
        self._log: Final = log
        self._last_loss = float("-inf")
        self.apart = False
        self.counts: Final[Counter[str]] = Counter()

    async def run(self, span_s: float) -> None:
        """Make trouble for a span of time."""
        kinds: tuple[tuple[int, Callable[[], str]], ...] = (
            (6, self._kill),
            (3, self._lose),
            (3, self._cut),
            (2, self._cut_minority),
            (3, self._fill),
            (3, self._drain),
            (1, self._swap),
            (3, self._stall),
            (2, self._damage),
            (2, self._stray),
        )
        # A seed has some kinds of faults alone, so that they come together more often.
        chosen = [row for row in kinds if self._random.random() < 0.6]
        end = trio.current_time() + span_s
        await trio.sleep(self._random.uniform(2, 12))
        while trio.current_time() < end and chosen:
            action = self._random.choices(
                [trouble for _, trouble in chosen], [weight for weight, _ in chosen]
            )[0]
            await self.make(action)
            if self._random.random() < 0.1:
                await self._change_promise()
            await trio.sleep(self._random.expovariate(0.2))

    async def make(self, action: Callable[[], str]) -> None:
        """Make one fault, if it is possible now."""
        kind, _, place = action().partition(": ")
        if kind:
            self.counts[kind] += 1
            self._log(f"{kind}: {place}")

    def end(self) -> None:
        """End all faults: nodes that are not lost for ever are there again."""
        self._cluster.cut([0] * len(self._cluster.nodes))
        self._cluster.long_delays = 0.0
        for node in self._cluster.nodes:
            node.full = node.draining = False
            node.stalled_until = 0.0
            node.forgotten = node.forgotten or node.lost
            self._restart(node)

    def _later(self, most_s: float, action: Callable[[], None]) -> None:
        span = self._random.uniform(0.2, most_s)

        async def wait() -> None:
            await trio.sleep(span)
            action()

        self._cluster.nursery.start_soon(wait)

    # -- nodes --------------------------------------------------------------------------------------
    def _kill(self) -> str:
        up = [node for node in self._cluster.nodes if node.is_up]
        if not up:
            return ""
        node = self._random.choice(up)
        self._crash(node, False)
        self._later(30, lambda: self._restart(node))
        return f"killed: {node.name}"

    def _lose(self) -> str:
        """Lose a node for ever: at most one of three, and two of five."""
        nodes, now = self._cluster.nodes, trio.current_time()
        lost = sum(node.lost for node in nodes)
        if lost >= (len(nodes) - 1) // 2 or now - self._last_loss < _LOST_APART_S:
            return ""
        node = self._random.choice([candidate for candidate in nodes if not candidate.lost])
        self._last_loss = now
        with self._users.safety.fault():
            self._crash(node, True)
        if self._random.random() < 0.5:

            def forget() -> None:
                node.forgotten = True

            self._later(20, forget)
        return f"lost for ever: {node.name}"

    def _drain(self) -> str:
        node = self._random.choice(self._cluster.nodes)

        def undrain() -> None:
            node.draining = False

        node.draining = True
        self._later(30, undrain)
        return f"drained: {node.name}"

    # -- network ------------------------------------------------------------------------------------
    def _cut(self) -> str:
        sides = [self._random.randint(0, 1) for _ in self._cluster.nodes]
        self._cluster.cut(sides)
        self._later(40, lambda: self._cluster.cut([0] * len(self._cluster.nodes)))
        return f"cut: {sides}"

    def _cut_minority(self) -> str:
        """Let the smallest majority of the nodes reach each other."""
        numbers = [node.number for node in self._cluster.nodes]
        away = self._random.sample(numbers, (len(numbers) - 1) // 2)
        self._cluster.cut([int(number in away) for number in numbers])
        self._later(40, lambda: self._cluster.cut([0] * len(self._cluster.nodes)))
        return f"cut to a majority: without {sorted(away)}"

    # -- disks --------------------------------------------------------------------------------------
    def _fill(self) -> str:
        node = self._random.choice(self._cluster.nodes)

        def has_space() -> None:
            node.full = False

        node.full = True
        self._later(30, has_space)
        return f"full disk: {node.name}"

    def _swap(self) -> str:
        """Exchange the disks of two nodes while both are down."""
        living = [node for node in self._cluster.nodes if not node.lost]
        first, other = self._random.sample(living, 2)
        for node in (first, other):
            if node.is_up:
                self._crash(node, False)
            self._later(10, lambda node=node: self._restart(node))  # type: ignore[misc]
        self._cluster.swap_disks(first, other)
        return f"swapped disks: {first.name} and {other.name}"

    def _stall(self) -> str:
        node = self._random.choice(self._cluster.nodes)
        node.stalled_until = trio.current_time() + self._random.uniform(0.5, 15)
        return f"stalled disk: {node.name}"

    def _sound_pairs(self) -> list[list[StoredReplica]]:
        """Return the sound replicas of each object that has several on nodes that are up."""
        by_name: dict[bytes, list[StoredReplica]] = {}
        for node in self._cluster.nodes:
            if node.is_up:
                for replica in node.replicas.values():
                    if replica.type is ObjectType.DURABLE_BLOB and replica.write >= 0 and not replica.damaged:
                        by_name.setdefault(replica.name, []).append(replica)
        return [
            several for several in by_name.values() if len({twin.data for twin in several}) < len(several)
        ]

    def _damage(self) -> str:
        """Damage replicas of two objects at once, each of which has the same bytes elsewhere."""
        several = self._sound_pairs()
        for replicas in self._random.sample(several, min(len(several), 2)):
            replica = self._random.choice(replicas)
            if any(other.data == replica.data for other in replicas if other is not replica):
                with self._users.safety.fault():
                    self._cluster.damage(replica)
        return "damaged" if several else ""

    def _stray(self) -> str:
        """Write other bytes to a replica of a listed file, as a program does that has its name."""
        listed = {
            name
            for _, content in self._users.safety.lists()
            for entry in content.entries
            for name in entry.names
        }
        several = [replicas for replicas in self._sound_pairs() if replicas[0].name in listed]
        if not several:
            return ""
        replica = self._random.choice(self._random.choice(several))
        if sum(other.data == replica.data for other in self._cluster.living(replica.name)) < 2:
            return ""
        with self._users.safety.fault():
            replica.data = bytes([replica.data[0] ^ 1]) + replica.data[1:]
        replica.harmed_at = self._cluster.now()
        replica.v_w += self._random.randint(1, 3)
        replica.write = self._cluster.history.after(replica.write, replica.data)
        self._users.strayed.add(replica.name)
        return f"stray write: n{replica.node}"

    # -- promises -----------------------------------------------------------------------------------
    async def _change_promise(self) -> None:
        """Promise another number, by the clock of any node, while all nodes that live reach each other."""
        cluster = self._cluster
        living = [node for node in cluster.nodes if not node.lost]
        together = all(cluster.reach(first.number, two.number) for first in living for two in living)
        if not together or any(node.full for node in living):
            return
        node, replicas = self._random.choice(living), self._random.randint(2, 3)

        def work(program: ModelProgram) -> None:
            client, files = self._users.open(program, ModelSession(cluster, node.number, self._users.group))
            references = client.lookup(self._users.list_name, group=files.group)
            promises = Promises(client)
            self._users.promised.append(replicas)
            promises.keep_group(files.group, references[0], label=ALIAS, replicas=replicas, apart=self.apart)
            self._users.promised[:] = [replicas]

        try:
            await ModelProgram(work).run()
        except Exception:  # noqa: BLE001 - its outcome is open
            return
        self.counts["another promise"] += 1

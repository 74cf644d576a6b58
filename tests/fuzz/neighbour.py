"""An innocent client next to the attackers, whose calls must succeed all the time; and a cleaner.

The cleaner removes objects that attackers leave in the store, so that a long campaign does not fill the disk.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dios.errors import Code, DiosError
from dios.transport.unix.client import close_all
from dios.wire import messages
from dios.wire.codec import decode_status
from dios.wire.messages import Buffer, Created, Failure, References
from dios.wire.types import Cause, Flag, NameKind, ObjectType
from tests.support.node.raw_client import RawClient, create, pattern, read, write

RUN_S: Final = 30.0
LARGE: Final = 300_000
PROGRAM: Final = b"raise SystemExit(7)"


class Neighbour:
    """A session during a whole campaign, with objects that nobody else may change.

    Its tasks run on the node ``host``; without it on the least loaded node, which may be an attacker's.
    """

    def __init__(self, path: Path, *, host: str = "") -> None:
        self._path: Final = path
        self._host: Final = host
        self._client: Final = RawClient(path)
        self._turns = 0
        self._kept: Final = [
            (create(self._client, kind, pattern(3_000, seed)), pattern(3_000, seed))
            for seed, kind in enumerate((ObjectType.SHMEM_BLOB, ObjectType.DURABLE_BLOB), 2)
        ]
        self._program: Final = create(self._client, ObjectType.SHMEM_BLOB, PROGRAM).reference.ref
        self.calls = 0
        self.runs = 0
        self.runs_possible = True

    @property
    def refs(self) -> list[int]:
        """The numbers of its references, which are useless to others."""
        return [created.reference.ref for created, _ in self._kept] + [self._client.welcome.self_ref.ref]

    @property
    def names(self) -> list[bytes]:
        """Its secret names, for attackers of another principal, to whom they are useless."""
        return [created.name for created, _ in self._kept if created.name is not None] + [
            self._client.welcome.name
        ]

    def turn(self) -> None:
        """Do one round of work; raise AssertionError for a wrong answer."""
        client = self._client
        self._turns += 1
        for created, data in self._kept:
            assert read(client, created.reference.ref) == data, "an object of the neighbour has changed"
            assert created.name is not None
            references = client.ask(messages.Lookup(created.name), References).references
            assert [handle.object for handle in references] == [created.reference.object], (
                "a name of the neighbour is lost"
            )
            for reference in references:
                client.ask(messages.Delete(reference.ref, int(Flag.HANDLE_ONLY)), messages.Done)
        kind = ObjectType.SHMEM_BLOB if self._turns % 4 else ObjectType.DURABLE_BLOB
        data = pattern(1_000 if self._turns % 3 else LARGE, self._turns % 200 + 1)
        fresh = create(client, kind)
        write(client, fresh.reference.ref, data)
        assert read(client, fresh.reference.ref) == data, "the neighbour does not read what it wrote"
        client.ask(messages.Delete(fresh.reference.ref, int(Flag.DESTROY)), messages.Done)
        self.calls += 12
        self._forget_descriptors()

    def objects(self) -> int:
        """Return the number of objects of the node, of all owners."""
        return self._client.ask(messages.NodeInfo(), messages.Info).counts["objects"]

    def run(self) -> None:
        """Run a trivial task to its end, as soon as there is room for one."""
        client = self._client
        deadline = time.monotonic() + RUN_S
        while self.runs_possible:
            assert time.monotonic() < deadline, "the neighbour cannot run a task"
            started = client.any(messages.Run(self._program, host=self._host))
            if isinstance(started, Failure) and started.code == Code.ENOSYS:
                self.runs_possible = False
                return
            if isinstance(started, Failure) and started.code in {Code.EAGAIN, Code.EDQUOT}:
                continue  # the maximum number of tasks is running already
            assert isinstance(started, Created), started
            row = self._ended(started.reference.ref)
            assert (row.cause, row.exit_code) == (Cause.EXITED, 7), row.detail
            self.runs += 1
            return

    def _ended(self, ref: int) -> messages.TaskRow:
        client = self._client
        client.ask(messages.Select((ref,)), messages.Selected)
        row = decode_status(client.ask(messages.ReadOnce(ref), Buffer).data or b"")
        client.ask(messages.Delete(ref, int(Flag.HANDLE_ONLY)), messages.Done)
        return row

    def _forget_descriptors(self) -> None:
        close_all(tuple(self._client.fds))
        self._client.fds.clear()

    def start(self, program: bytes, *arguments: str, refs: Sequence[int] = ()) -> int:
        """Start a program of an attacker as its own task; return its reference, 0 without room for it."""
        client = self._client
        program_ref = client.ask(
            messages.Create(ObjectType.SHMEM_BLOB, name_kind=NameKind.ANONYMOUS), Created
        ).reference.ref
        write(client, program_ref, program)
        handed = tuple(messages.Handed(ref, 3) for ref in refs)
        started = client.any(messages.Run(program_ref, inputs=handed, arguments=arguments))
        client.ask(messages.Delete(program_ref), messages.Done)
        if isinstance(started, Failure) and started.code == Code.EDQUOT:
            return 0
        assert isinstance(started, Created), started
        return started.reference.ref

    def outcome(self, ref: int) -> messages.TaskRow:
        """Wait for a task's end, and return its status."""
        return self._ended(ref)

    def close(self) -> None:
        """Disconnect, and delete everything."""
        with contextlib.suppress(AssertionError, DiosError, OSError):
            for created, _ in self._kept:
                self._client.ask(messages.Delete(created.reference.ref, int(Flag.DESTROY)), messages.Done)
        self._client.close()


class Janitor:
    """A cleaner for objects that attackers left in the store, with the rights of their principal."""

    def __init__(self, path: Path) -> None:
        self._client: Final = RawClient(path)

    def sweep(self, names: Sequence[bytes]) -> int:
        """Destroy the objects with these names; return the number that was found."""
        client, gone = self._client, 0
        for name in names:
            reply = client.any(messages.Lookup(name))
            for reference in reply.references if isinstance(reply, References) else ():
                gone += isinstance(
                    client.any(messages.Delete(reference.ref, int(Flag.DESTROY))), messages.Done
                )
                client.any(messages.Delete(reference.ref, int(Flag.HANDLE_ONLY)))
        return gone

    def close(self) -> None:
        """Leave."""
        self._client.close()

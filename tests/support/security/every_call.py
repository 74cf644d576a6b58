"""Every call that takes a reference or buffer, with one put into each place where it can stand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from dios.wire import messages
from dios.wire.types import (
    AcquireIov,
    CommitIov,
    Flag,
    Mode,
    NameKind,
    ObjectType,
    Permission,
    RequestEnd,
    SandboxUse,
)
from tests.support.security.hostile_pair import Puppet

Make: TypeAlias = Callable[[Puppet, int], messages.AnyCall]
ALL: Final = int(Permission.ALL)


def own_program(puppet: Puppet) -> int:
    """What every task may read and run: its own program."""
    assert puppet.welcome.executable is not None
    return puppet.welcome.executable.ref


BY_REFERENCE: Final[dict[str, Make]] = {
    "read": lambda _, ref: messages.ReadOnce(ref),
    "write": lambda _, ref: messages.WriteOnce(ref, b"evil"),
    "stat": lambda _, ref: messages.Stat(ref),
    "delete": lambda _, ref: messages.Delete(ref),
    "drop": lambda _, ref: messages.Delete(ref, int(Flag.HANDLE_ONLY)),
    "destroy": lambda _, ref: messages.Delete(ref, int(Flag.DESTROY)),
    "copy": lambda puppet, ref: messages.Copy(ref, puppet.self_ref),
    "copy to": lambda puppet, ref: messages.Copy(puppet.mine, ref),
    "run": lambda _, ref: messages.Run(ref),
    "run in": lambda puppet, ref: messages.Run(own_program(puppet), (ref,)),
    "run with input": lambda puppet, ref: messages.Run(
        own_program(puppet), inputs=(messages.Handed(ref, ALL),)
    ),
    "run with output": lambda puppet, ref: messages.Run(
        own_program(puppet), outputs=(messages.Handed(ref, ALL),)
    ),
    "pause": lambda _, ref: messages.Pause(ref),
    "resume": lambda _, ref: messages.Resume(ref),
    "acquire read": lambda _, ref: messages.AcquireRead(ref),
    "acquire write": lambda _, ref: messages.AcquireWrite(ref, 4),
    "commit read": lambda _, ref: messages.CommitRead(ref, 1),
    "commit write": lambda _, ref: messages.CommitWrite(ref, 1),
    "release read": lambda _, ref: messages.ReleaseRead(ref, 1),
    "release write": lambda _, ref: messages.ReleaseWrite(ref, 1),
    "commit acquire read": lambda _, ref: messages.CommitAcquireRead(ref, 1),
    "commit acquire write": lambda _, ref: messages.CommitAcquireWrite(ref, 1),
    "select": lambda _, ref: messages.Select((ref,), Mode.READ, 0),
    "attach": lambda _, ref: messages.Attach(ref, Mode.READ),
    "console": lambda _, ref: messages.ConsoleOf(ref),
    "retire": lambda _, ref: messages.Retire(ref),
    "describe": lambda _, ref: messages.Describe(ref),
    "look up in": lambda _, ref: messages.Lookup(bytes(range(32)), ref),
    "record request": lambda _, ref: messages.RecordRequest(ref, 0, "GET", RequestEnd.ANSWERED),
    "record use": lambda _, ref: messages.RecordUse(ref, SandboxUse.PROGRAM, 1, "sh", 2),
    "connect by": lambda _, ref: messages.Create(
        ObjectType.TCP_STREAM, name_kind=NameKind.ANONYMOUS, address="127.0.0.1:9", network=ref
    ),
    "create in": lambda _, ref: messages.Create(ObjectType.SHMEM_BLOB, (ref,)),
}
"""What the call is, and how it is made with a reference in the place that is tried."""


def by_buffer(ref: int, buffer: int) -> dict[str, messages.AnyCall]:
    """Every call that names a buffer, through a reference of the caller's own."""
    return {
        "commit read": messages.CommitRead(ref, buffer),
        "commit read, moved": messages.CommitRead(ref, buffer, CommitIov.MOVE),
        "commit write": messages.CommitWrite(ref, buffer),
        "commit write, moved": messages.CommitWrite(ref, buffer, 0, CommitIov.MOVE),
        "commit write, borrowed": messages.CommitWrite(ref, buffer, 0, CommitIov.BORROW),
        "commit write with bytes": messages.CommitWrite(ref, buffer, data=b"evil"),
        "commit acquire read": messages.CommitAcquireRead(ref, buffer),
        "commit acquire write": messages.CommitAcquireWrite(ref, buffer),
        "release read": messages.ReleaseRead(ref, buffer),
        "release write": messages.ReleaseWrite(ref, buffer),
        "release, committing": messages.ReleaseWrite(ref, buffer, int(Flag.RELEASE_COMMIT)),
        "take to read": messages.AcquireRead(ref, iov=AcquireIov.TAKE, buffer=buffer),
        "borrow to read": messages.AcquireRead(ref, iov=AcquireIov.BORROW, buffer=buffer),
        "use again to read": messages.AcquireRead(ref, iov=AcquireIov.REUSE, buffer=buffer),
        "take to write": messages.AcquireWrite(ref, 4, iov=AcquireIov.TAKE, buffer=buffer),
        "borrow to write": messages.AcquireWrite(ref, 4, iov=AcquireIov.BORROW, buffer=buffer),
        "use again to write": messages.AcquireWrite(ref, 4, iov=AcquireIov.REUSE, buffer=buffer),
    }

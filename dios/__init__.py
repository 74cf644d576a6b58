"""DIOS: one uniform, distributed object space, in which a task can use exactly the objects that it was given.

``with dios.connect() as node:`` opens the node, inside a task and outside; ``async with
dios.aio.open_node()`` does the same on asyncio and trio. Names are loaded at their first use, so that
importing this module is fast.
``help(dios.Executor)`` shows one of them.

Calls of functions in sandboxed tasks:
    Executor, shared_executor, current_executor, Actor, put, get, ValueReference, allow, RemoteError
Code that nobody has read, in sessions:
    Sandbox, SandboxBounds, SandboxResult, SandboxFailure, SandboxTable, SandboxFile, ProgramResult,
    SandboxSnapshot, remove_snapshot;
    aio.Sandbox on event loops
A node:
    connect, Node, checkpointed; aio, open_node, AsyncNode; syscalls
Objects and what can be done with them (each class is for ``Node``, and with ``Async`` before its name, such
as AsyncReference, for async programs: AsyncAcceptor, AsyncBatch, AsyncConsole, AsyncDatagrams, AsyncGroup,
AsyncLog, AsyncReadRequest, AsyncStream, AsyncTask, AsyncTcpConnection, AsyncWriteRequest):
    Reference, Group, Log, Stream, Task, Acceptor, TcpConnection, Datagrams, Console, Batch, ReadRequest,
    WriteRequest; Handle is any of them, Handed one with fewer permissions for a task
Programs and their limits:
    Program, work, Limits
Names and keys:
    Keyring, format_name, parse_name, fingerprint
Results:
    Status, ChildEnded, Delegated, Lost, Retired, Description, Usage, Member, Gathered
Errors, of which DiosError is the base:
    BadReferenceError, Busy, ClosedError, Conflict, DamagedError, EndOfStreamError, ExistsError,
    InvalidError, LimitError, MissingEnvironmentError, NoSpaceError, NoSuchTaskError, NotExecutableError,
    NotPermittedError, NotSupportedError, OutOfMemoryError, ProtocolError, StaleError, TimeLimitError,
    TooLargeError, TooManyCallsError, UnreachableError, WouldBlockError
Alternatives (enumerations and flags):
    Brand, Buffering, Cause, Deletion, Mode, NameKind, NodeStatus, NodeWish, ObjectType, Permission,
    Persistence, Proximity, Resource, Scope, Semantics, TaskState
Kinds of objects to create:
    PRIVMEM_BLOB, SHMEM_BLOB, DURABLE_BLOB, SHMEM_STREAM, DURABLE_STREAM, TCP_STREAM, TCP_ACCEPT_STREAM,
    UDP_STREAM, CONSOLE_STREAM, TIMER_BLOB, GROUP, TASK, NETWORK
Options of names, buffers and requests:
    DETERMINISTIC, RANDOM, ANONYMOUS, RAW, EXCL, MRSW, SRMW, ANY

The packages, from the bottom up: ``wire`` (messages), ``core`` (the state machine of a node), ``store``
(objects on disk), ``transport`` (sockets and shared memory), ``host`` (executes the core's instructions),
``client`` (the calls for programs), ``lib`` (libraries on the calls), ``bridges`` (other libraries'
interfaces), ``firmament`` (the cluster scheduler), ``node`` and ``cli`` (processes and commands).
``fairness``, ``packer``, ``sprayer`` are separate libraries.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dios import aio, syscalls
    from dios.bridges.notebook import Shell
    from dios.client.aio.node import (
        AsyncAcceptor,
        AsyncBatch,
        AsyncConsole,
        AsyncDatagrams,
        AsyncGroup,
        AsyncLog,
        AsyncNode,
        AsyncReadRequest,
        AsyncReference,
        AsyncStream,
        AsyncTask,
        AsyncTcpConnection,
        AsyncWriteRequest,
        open_node,
    )
    from dios.client.constants import (
        ANONYMOUS,
        ANY,
        CONSOLE_STREAM,
        DETERMINISTIC,
        DURABLE_BLOB,
        DURABLE_STREAM,
        EXCL,
        GROUP,
        MRSW,
        NETWORK,
        PRIVMEM_BLOB,
        RANDOM,
        RAW,
        SHMEM_BLOB,
        SHMEM_STREAM,
        SRMW,
        TASK,
        TCP_ACCEPT_STREAM,
        TCP_STREAM,
        TIMER_BLOB,
        UDP_STREAM,
    )
    from dios.client.keyring import Keyring
    from dios.client.ops.attributes import Handed, Handle
    from dios.client.ops.cluster import Gathered, Member
    from dios.client.ops.scheduling import work
    from dios.client.ops.status import ChildEnded, Delegated, Lost, Retired, Status
    from dios.client.ops.usage import Description, Usage
    from dios.client.program import Program
    from dios.client.sync.checkpointed import checkpointed
    from dios.client.sync.node import (
        Acceptor,
        Batch,
        Console,
        Datagrams,
        Group,
        Log,
        Node,
        ReadRequest,
        Reference,
        Stream,
        Task,
        TcpConnection,
        WriteRequest,
        connect,
    )
    from dios.errors import (
        BadReferenceError,
        Busy,
        ClosedError,
        Conflict,
        DamagedError,
        DiosError,
        EndOfStreamError,
        ExistsError,
        InvalidError,
        LimitError,
        MissingEnvironmentError,
        NoSpaceError,
        NoSuchTaskError,
        NotExecutableError,
        NotPermittedError,
        NotSupportedError,
        OutOfMemoryError,
        ProtocolError,
        StaleError,
        TimeLimitError,
        TooLargeError,
        TooManyCallsError,
        UnreachableError,
        WouldBlockError,
    )
    from dios.lib.executor.actors import Actor
    from dios.lib.executor.executor import Executor
    from dios.lib.executor.nested import current_executor
    from dios.lib.executor.references import ValueReference, get, put
    from dios.lib.executor.remote_errors import RemoteError
    from dios.lib.executor.results.class_forms import allow
    from dios.lib.executor.shared_executors import shared_executor
    from dios.lib.sandbox.bounds import SandboxBounds
    from dios.lib.sandbox.result import (
        ProgramResult,
        SandboxFailure,
        SandboxFile,
        SandboxResult,
        SandboxTable,
    )
    from dios.lib.sandbox.sandbox import Sandbox
    from dios.lib.snapshots.snapshots import SandboxSnapshot, remove_snapshot
    from dios.wire.messages import Limits
    from dios.wire.nametext import fingerprint, format_name, parse_name
    from dios.wire.types import (
        Brand,
        Buffering,
        Cause,
        Deletion,
        Mode,
        NameKind,
        NodeStatus,
        NodeWish,
        ObjectType,
        Permission,
        Persistence,
        Proximity,
        Resource,
        Scope,
        Semantics,
        TaskState,
    )

    # For type checkers only: with it, help(dios) would show every class with all that it inherits.
    __all__ = [
        "ANONYMOUS",
        "ANY",
        "CONSOLE_STREAM",
        "DETERMINISTIC",
        "DURABLE_BLOB",
        "DURABLE_STREAM",
        "EXCL",
        "GROUP",
        "MRSW",
        "NETWORK",
        "PRIVMEM_BLOB",
        "RANDOM",
        "RAW",
        "SHMEM_BLOB",
        "SHMEM_STREAM",
        "SRMW",
        "TASK",
        "TCP_ACCEPT_STREAM",
        "TCP_STREAM",
        "TIMER_BLOB",
        "UDP_STREAM",
        "Acceptor",
        "Actor",
        "AsyncAcceptor",
        "AsyncBatch",
        "AsyncConsole",
        "AsyncDatagrams",
        "AsyncGroup",
        "AsyncLog",
        "AsyncNode",
        "AsyncReadRequest",
        "AsyncReference",
        "AsyncStream",
        "AsyncTask",
        "AsyncTcpConnection",
        "AsyncWriteRequest",
        "BadReferenceError",
        "Batch",
        "Brand",
        "Buffering",
        "Busy",
        "Cause",
        "ChildEnded",
        "ClosedError",
        "Conflict",
        "Console",
        "DamagedError",
        "Datagrams",
        "Delegated",
        "Deletion",
        "Description",
        "DiosError",
        "EndOfStreamError",
        "Executor",
        "ExistsError",
        "Gathered",
        "Group",
        "Handed",
        "Handle",
        "InvalidError",
        "Keyring",
        "LimitError",
        "Limits",
        "Log",
        "Lost",
        "Member",
        "MissingEnvironmentError",
        "Mode",
        "NameKind",
        "NoSpaceError",
        "NoSuchTaskError",
        "Node",
        "NodeStatus",
        "NodeWish",
        "NotExecutableError",
        "NotPermittedError",
        "NotSupportedError",
        "ObjectType",
        "OutOfMemoryError",
        "Permission",
        "Persistence",
        "Program",
        "ProgramResult",
        "ProtocolError",
        "Proximity",
        "ReadRequest",
        "Reference",
        "RemoteError",
        "Resource",
        "Retired",
        "Sandbox",
        "SandboxBounds",
        "SandboxFailure",
        "SandboxFile",
        "SandboxResult",
        "SandboxSnapshot",
        "SandboxTable",
        "Scope",
        "Semantics",
        "StaleError",
        "Status",
        "Stream",
        "Task",
        "TaskState",
        "TcpConnection",
        "TimeLimitError",
        "TooLargeError",
        "TooManyCallsError",
        "UnreachableError",
        "Usage",
        "ValueReference",
        "WouldBlockError",
        "WriteRequest",
        "aio",
        "allow",
        "checkpointed",
        "connect",
        "current_executor",
        "fingerprint",
        "format_name",
        "get",
        "open_node",
        "parse_name",
        "put",
        "remove_snapshot",
        "shared_executor",
        "syscalls",
        "work",
    ]

_HOMES = {
    "dios": "aio syscalls",
    "dios.client.aio.node": (
        "AsyncAcceptor AsyncBatch AsyncConsole AsyncDatagrams AsyncGroup AsyncLog AsyncNode AsyncReadRequest"
        " AsyncReference AsyncStream AsyncTask AsyncTcpConnection AsyncWriteRequest open_node"
    ),
    "dios.client.ops.attributes": "Handed Handle",
    "dios.client.sync.checkpointed": "checkpointed",
    "dios.client.sync.node": (
        "Acceptor Batch Console Datagrams Group Log Node ReadRequest Reference Stream Task TcpConnection"
        " WriteRequest connect"
    ),
    "dios.client.ops.cluster": "Gathered Member",
    "dios.client.constants": (
        "ANONYMOUS ANY CONSOLE_STREAM DETERMINISTIC DURABLE_BLOB DURABLE_STREAM EXCL GROUP MRSW NETWORK"
        " PRIVMEM_BLOB RANDOM RAW SHMEM_BLOB SHMEM_STREAM SRMW TASK TCP_ACCEPT_STREAM TCP_STREAM TIMER_BLOB"
        " UDP_STREAM"
    ),
    "dios.client.keyring": "Keyring",
    "dios.client.program": "Program",
    "dios.client.ops.scheduling": "work",
    "dios.client.ops.status": "ChildEnded Delegated Lost Retired Status",
    "dios.client.ops.usage": "Description Usage",
    "dios.errors": (
        "BadReferenceError Busy ClosedError Conflict DamagedError DiosError EndOfStreamError ExistsError"
        " InvalidError LimitError MissingEnvironmentError NoSpaceError NoSuchTaskError NotExecutableError"
        " NotPermittedError NotSupportedError OutOfMemoryError ProtocolError StaleError TimeLimitError"
        " TooLargeError TooManyCallsError UnreachableError WouldBlockError"
    ),
    "dios.lib.executor.actors": "Actor",
    "dios.lib.executor.executor": "Executor",
    "dios.lib.executor.nested": "current_executor",
    "dios.lib.executor.references": "ValueReference get put",
    "dios.lib.executor.remote_errors": "RemoteError",
    "dios.lib.executor.results.class_forms": "allow",
    "dios.lib.executor.shared_executors": "shared_executor",
    "dios.lib.sandbox.bounds": "SandboxBounds",
    "dios.lib.sandbox.result": "ProgramResult SandboxFailure SandboxFile SandboxResult SandboxTable",
    "dios.lib.sandbox.sandbox": "Sandbox",
    "dios.lib.snapshots.snapshots": "SandboxSnapshot remove_snapshot",
    "dios.wire.messages": "Limits",
    "dios.wire.nametext": "fingerprint format_name parse_name",
    "dios.wire.types": (
        "Brand Buffering Cause Deletion Mode NameKind NodeStatus NodeWish ObjectType Permission Persistence"
        " Proximity Resource Scope Semantics TaskState"
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    """Load a public name at its first use."""
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'dios' has no attribute {name!r}")
    if home == "dios":
        value: object = importlib.import_module(f"dios.{name}")
    else:
        value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def load_ipython_extension(shell: Shell) -> None:
    """Add the magics of notebooks to a shell: ``%load_ext dios``."""
    from dios.bridges.notebook import load  # noqa: PLC0415 - IPython is loaded already

    load(shell)


def unload_ipython_extension(shell: Shell) -> None:
    """End the workers of the cells of a shell: ``%unload_ext dios``."""
    from dios.bridges.notebook import unload  # noqa: PLC0415 - the same

    unload(shell)


def __dir__() -> list[str]:
    """Return the public names, loaded or not."""
    return sorted(_HOME_OF)

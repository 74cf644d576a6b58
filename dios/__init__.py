"""DIOS: one uniform, distributed object space, in which a task can use exactly the objects that it was given.

``with dios.connect() as node:`` opens the node, inside a task and outside; ``async with dios.open_node()``
does the same on trio. Names are loaded at their first use, so that importing this module is fast.

The packages, from the bottom up: ``wire`` (messages), ``core`` (the state machine of a node), ``store``
(objects on disk), ``transport`` (sockets and shared memory), ``host`` (executes the core's instructions),
``client`` (the calls for programs), ``lib`` (libraries on the calls), ``firmament`` (the cluster scheduler),
``node`` and ``cli`` (processes and commands). ``fairness``, ``packer``, ``sprayer`` are separate libraries.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dios import syscalls
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
    from dios.client.trio.node import (
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
        UnreachableError,
        WouldBlockError,
    )
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

_HOMES = {
    "dios": "syscalls",
    "dios.client.trio.node": (
        "AsyncAcceptor AsyncBatch AsyncConsole AsyncDatagrams AsyncGroup AsyncLog AsyncNode AsyncReadRequest"
        " AsyncReference AsyncStream AsyncTask AsyncTcpConnection AsyncWriteRequest open_node"
    ),
    "dios.client.ops.attributes": "Handed Handle",
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
        " InvalidError LimitError NoSpaceError NoSuchTaskError NotExecutableError NotPermittedError"
        " NotSupportedError OutOfMemoryError ProtocolError StaleError TimeLimitError TooLargeError"
        " UnreachableError WouldBlockError"
    ),
    "dios.wire.messages": "Limits",
    "dios.wire.nametext": "fingerprint format_name parse_name",
    "dios.wire.types": (
        "Brand Buffering Cause Deletion Mode NameKind NodeStatus NodeWish ObjectType Permission Persistence"
        " Proximity Resource Scope Semantics TaskState"
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

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
    "ProtocolError",
    "Proximity",
    "ReadRequest",
    "Reference",
    "Resource",
    "Retired",
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
    "UnreachableError",
    "Usage",
    "WouldBlockError",
    "WriteRequest",
    "connect",
    "fingerprint",
    "format_name",
    "open_node",
    "parse_name",
    "syscalls",
    "work",
]


def __getattr__(name: str) -> object:
    """Load a public name at its first use."""
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'dios' has no attribute {name!r}")
    if name == "syscalls":
        value: object = importlib.import_module("dios.syscalls")
    else:
        value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, loaded or not."""
    return sorted(__all__)

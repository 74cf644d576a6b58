"""DIOS: one uniform, distributed object space, in which a task can use exactly the objects that it was given.

``with dios.connect() as node:`` opens the node, inside a task and outside; ``async with
dios.aio.open_node()`` does the same on asyncio and trio. Names are loaded at their first use, so that
importing this module is fast.
``help(dios.Executor)`` shows one of them.

Calls of functions in sandboxed tasks:
    Executor, shared_executor, current_executor, Actor, put, get, ValueReference, allow, RemoteError
Code that nobody has read, in sessions:
    Sandbox, SandboxBounds, SandboxResult, SandboxFailure, SandboxTable, SandboxDisplay, SandboxFile,
    ProgramResult, SandboxProcess, ProgramInfo, ProgramOutput, SandboxSnapshot, remove_snapshot;
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

# ``X as X`` is a public name for type checkers. With ``__all__``, help(dios) would show each class in full.
if TYPE_CHECKING:
    from dios import aio as aio
    from dios import syscalls as syscalls
    from dios.bridges.notebook import Shell
    from dios.client.aio.node import AsyncAcceptor as AsyncAcceptor
    from dios.client.aio.node import AsyncBatch as AsyncBatch
    from dios.client.aio.node import AsyncConsole as AsyncConsole
    from dios.client.aio.node import AsyncDatagrams as AsyncDatagrams
    from dios.client.aio.node import AsyncGroup as AsyncGroup
    from dios.client.aio.node import AsyncLog as AsyncLog
    from dios.client.aio.node import AsyncNode as AsyncNode
    from dios.client.aio.node import AsyncReadRequest as AsyncReadRequest
    from dios.client.aio.node import AsyncReference as AsyncReference
    from dios.client.aio.node import AsyncStream as AsyncStream
    from dios.client.aio.node import AsyncTask as AsyncTask
    from dios.client.aio.node import AsyncTcpConnection as AsyncTcpConnection
    from dios.client.aio.node import AsyncWriteRequest as AsyncWriteRequest
    from dios.client.aio.node import open_node as open_node
    from dios.client.constants import ANONYMOUS as ANONYMOUS
    from dios.client.constants import ANY as ANY
    from dios.client.constants import CONSOLE_STREAM as CONSOLE_STREAM
    from dios.client.constants import DETERMINISTIC as DETERMINISTIC
    from dios.client.constants import DURABLE_BLOB as DURABLE_BLOB
    from dios.client.constants import DURABLE_STREAM as DURABLE_STREAM
    from dios.client.constants import EXCL as EXCL
    from dios.client.constants import GROUP as GROUP
    from dios.client.constants import MRSW as MRSW
    from dios.client.constants import NETWORK as NETWORK
    from dios.client.constants import PRIVMEM_BLOB as PRIVMEM_BLOB
    from dios.client.constants import RANDOM as RANDOM
    from dios.client.constants import RAW as RAW
    from dios.client.constants import SHMEM_BLOB as SHMEM_BLOB
    from dios.client.constants import SHMEM_STREAM as SHMEM_STREAM
    from dios.client.constants import SRMW as SRMW
    from dios.client.constants import TASK as TASK
    from dios.client.constants import TCP_ACCEPT_STREAM as TCP_ACCEPT_STREAM
    from dios.client.constants import TCP_STREAM as TCP_STREAM
    from dios.client.constants import TIMER_BLOB as TIMER_BLOB
    from dios.client.constants import UDP_STREAM as UDP_STREAM
    from dios.client.keyring import Keyring as Keyring
    from dios.client.ops.attributes import Handed as Handed
    from dios.client.ops.attributes import Handle as Handle
    from dios.client.ops.cluster import Gathered as Gathered
    from dios.client.ops.cluster import Member as Member
    from dios.client.ops.scheduling import work as work
    from dios.client.ops.status import ChildEnded as ChildEnded
    from dios.client.ops.status import Delegated as Delegated
    from dios.client.ops.status import Lost as Lost
    from dios.client.ops.status import Retired as Retired
    from dios.client.ops.status import Status as Status
    from dios.client.ops.usage import Description as Description
    from dios.client.ops.usage import Usage as Usage
    from dios.client.program import Program as Program
    from dios.client.sync.checkpointed import checkpointed as checkpointed
    from dios.client.sync.node import Acceptor as Acceptor
    from dios.client.sync.node import Batch as Batch
    from dios.client.sync.node import Console as Console
    from dios.client.sync.node import Datagrams as Datagrams
    from dios.client.sync.node import Group as Group
    from dios.client.sync.node import Log as Log
    from dios.client.sync.node import Node as Node
    from dios.client.sync.node import ReadRequest as ReadRequest
    from dios.client.sync.node import Reference as Reference
    from dios.client.sync.node import Stream as Stream
    from dios.client.sync.node import Task as Task
    from dios.client.sync.node import TcpConnection as TcpConnection
    from dios.client.sync.node import WriteRequest as WriteRequest
    from dios.client.sync.node import connect as connect
    from dios.errors import BadReferenceError as BadReferenceError
    from dios.errors import Busy as Busy
    from dios.errors import ClosedError as ClosedError
    from dios.errors import Conflict as Conflict
    from dios.errors import DamagedError as DamagedError
    from dios.errors import DiosError as DiosError
    from dios.errors import EndOfStreamError as EndOfStreamError
    from dios.errors import ExistsError as ExistsError
    from dios.errors import InvalidError as InvalidError
    from dios.errors import LimitError as LimitError
    from dios.errors import MissingEnvironmentError as MissingEnvironmentError
    from dios.errors import NoSpaceError as NoSpaceError
    from dios.errors import NoSuchTaskError as NoSuchTaskError
    from dios.errors import NotExecutableError as NotExecutableError
    from dios.errors import NotPermittedError as NotPermittedError
    from dios.errors import NotSupportedError as NotSupportedError
    from dios.errors import OutOfMemoryError as OutOfMemoryError
    from dios.errors import ProtocolError as ProtocolError
    from dios.errors import StaleError as StaleError
    from dios.errors import TimeLimitError as TimeLimitError
    from dios.errors import TooLargeError as TooLargeError
    from dios.errors import TooManyCallsError as TooManyCallsError
    from dios.errors import UnreachableError as UnreachableError
    from dios.errors import WouldBlockError as WouldBlockError
    from dios.lib.executor.actors import Actor as Actor
    from dios.lib.executor.executor import Executor as Executor
    from dios.lib.executor.nested import current_executor as current_executor
    from dios.lib.executor.references import ValueReference as ValueReference
    from dios.lib.executor.references import get as get
    from dios.lib.executor.references import put as put
    from dios.lib.executor.remote_errors import RemoteError as RemoteError
    from dios.lib.executor.results.class_forms import allow as allow
    from dios.lib.executor.shared_executors import shared_executor as shared_executor
    from dios.lib.sandbox.bounds import SandboxBounds as SandboxBounds
    from dios.lib.sandbox.process import SandboxProcess as SandboxProcess
    from dios.lib.sandbox.processes.channels import ProgramOutput as ProgramOutput
    from dios.lib.sandbox.processes.handles import ProgramInfo as ProgramInfo
    from dios.lib.sandbox.result import ProgramResult as ProgramResult
    from dios.lib.sandbox.result import SandboxDisplay as SandboxDisplay
    from dios.lib.sandbox.result import SandboxFailure as SandboxFailure
    from dios.lib.sandbox.result import SandboxFile as SandboxFile
    from dios.lib.sandbox.result import SandboxResult as SandboxResult
    from dios.lib.sandbox.result import SandboxTable as SandboxTable
    from dios.lib.sandbox.sandbox import Sandbox as Sandbox
    from dios.lib.snapshots.snapshots import SandboxSnapshot as SandboxSnapshot
    from dios.lib.snapshots.snapshots import remove_snapshot as remove_snapshot
    from dios.wire.messages import Limits as Limits
    from dios.wire.nametext import fingerprint as fingerprint
    from dios.wire.nametext import format_name as format_name
    from dios.wire.nametext import parse_name as parse_name
    from dios.wire.types import Brand as Brand
    from dios.wire.types import Buffering as Buffering
    from dios.wire.types import Cause as Cause
    from dios.wire.types import Deletion as Deletion
    from dios.wire.types import Mode as Mode
    from dios.wire.types import NameKind as NameKind
    from dios.wire.types import NodeStatus as NodeStatus
    from dios.wire.types import NodeWish as NodeWish
    from dios.wire.types import ObjectType as ObjectType
    from dios.wire.types import Permission as Permission
    from dios.wire.types import Persistence as Persistence
    from dios.wire.types import Proximity as Proximity
    from dios.wire.types import Resource as Resource
    from dios.wire.types import Scope as Scope
    from dios.wire.types import Semantics as Semantics
    from dios.wire.types import TaskState as TaskState

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
    "dios.lib.sandbox.result": (
        "ProgramResult SandboxDisplay SandboxFailure SandboxFile SandboxResult SandboxTable"
    ),
    "dios.lib.sandbox.process": "SandboxProcess",
    "dios.lib.sandbox.processes.channels": "ProgramOutput",
    "dios.lib.sandbox.processes.handles": "ProgramInfo",
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

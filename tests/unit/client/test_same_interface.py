"""The blocking client and the trio client have the same methods with the same arguments.

A program is moved from one to the other by ``await`` and ``async`` alone. The differences that must be are
listed here, each with its reason.
"""

from __future__ import annotations

import inspect
from typing import Final

import pytest

from dios.client.aio import node as trio_client
from dios.client.aio.handles import AsyncRequest
from dios.client.sync import node as sync
from dios.client.sync.handles import BlockingRequest
from dios.lib import aio, retrying
from dios.lib.clock import LamportClock
from dios.lib.mutex import Guarded, Mutex
from dios.lib.sandbox import async_sandbox, sandbox

PAIRS: Final[dict[type, type]] = {
    sync.Node: trio_client.AsyncNode,
    sync.Reference: trio_client.AsyncReference,
    sync.Task: trio_client.AsyncTask,
    sync.Console: trio_client.AsyncConsole,
    sync.Group: trio_client.AsyncGroup,
    sync.Stream: trio_client.AsyncStream,
    sync.Log: trio_client.AsyncLog,
    sync.TcpConnection: trio_client.AsyncTcpConnection,
    sync.Datagrams: trio_client.AsyncDatagrams,
    sync.Acceptor: trio_client.AsyncAcceptor,
    sync.Batch: trio_client.AsyncBatch,
    BlockingRequest: AsyncRequest,
    sync.ReadRequest: trio_client.AsyncReadRequest,
    sync.WriteRequest: trio_client.AsyncWriteRequest,
    Mutex: aio.AsyncMutex,
    Guarded: aio.AsyncGuarded,
    LamportClock: aio.AsyncLamportClock,
    sandbox.Sandbox: async_sandbox.Sandbox,
}
ASYNC_NAME: Final = {
    "__enter__": "__aenter__",
    "__exit__": "__aexit__",
    "__iter__": "__aiter__",
    "__next__": "__anext__",
}
NO_ATTRIBUTE: Final = {"reader", "writer"}
"""The ends of a stream are attached by a call, which an attribute cannot wait for: methods on trio."""
NOT_BLOCKING: Final = {"__await__"}
"""A request on trio is acquired by ``await`` or ``async with``, a blocking one by the call that makes it."""

Shape = tuple[tuple[str, object, object], ...]


def methods(kind: type) -> dict[str, object]:
    """Return the public attributes of a class, with the special methods that make it iterable or a body."""
    special = {*ASYNC_NAME, *ASYNC_NAME.values(), *NOT_BLOCKING, "__init__"}
    return {
        name: inspect.getattr_static(kind, name)
        for name in dir(kind)
        if not name.startswith("_") or name in special
    }


def shape(method: object) -> Shape:
    """Return the names, kinds and defaults of a method's arguments; nothing for an attribute."""
    if not callable(method):
        return ()
    arguments = list(inspect.signature(method).parameters.values())[1:]
    return tuple((argument.name, argument.kind, argument.default) for argument in arguments)


@pytest.mark.parametrize("blocking", PAIRS, ids=lambda kind: kind.__name__)
def test_both_clients_have_the_same_methods(blocking: type) -> None:
    """A class of the trio client has every public method and attribute of the blocking one, and no other."""
    expected = {ASYNC_NAME.get(name, name) for name in methods(blocking)}
    assert set(methods(PAIRS[blocking])) - NOT_BLOCKING == expected


@pytest.mark.parametrize("blocking", PAIRS, ids=lambda kind: kind.__name__)
def test_both_clients_have_the_same_arguments(blocking: type) -> None:
    """The arguments of a method have the same names, kinds and defaults in both clients."""
    on_trio = methods(PAIRS[blocking])
    different = {
        name: (shape(method), shape(on_trio[other]))
        for name, method in methods(blocking).items()
        if (other := ASYNC_NAME.get(name, name)) in on_trio
        and name not in NO_ATTRIBUTE
        and shape(method) != shape(on_trio[other])
    }
    assert not different


def test_the_node_is_opened_with_the_same_arguments() -> None:
    """``connect`` and ``open_node`` take the same arguments, as do both ways to insist on an attempt."""
    for blocking, on_trio in ((sync.connect, trio_client.open_node), (retrying.insist, aio.insist)):
        assert inspect.signature(blocking).parameters.keys() == inspect.signature(on_trio).parameters.keys()


def test_every_class_of_the_blocking_client_has_its_pair() -> None:
    """Each class that a client exports has its counterpart in the other one."""
    classes = {getattr(sync, name) for name in sync.__all__ if inspect.isclass(getattr(sync, name))}
    on_trio = {
        getattr(trio_client, name)
        for name in trio_client.__all__
        if inspect.isclass(getattr(trio_client, name))
    }
    assert classes <= set(PAIRS)
    assert on_trio == {PAIRS[kind] for kind in classes}


@pytest.mark.parametrize("blocking", PAIRS, ids=lambda kind: kind.__name__)
def test_every_method_of_the_trio_client_is_explained(blocking: type) -> None:
    """Each public method has a docstring in both clients."""
    for kind in (blocking, PAIRS[blocking]):
        for name, method in methods(kind).items():
            if callable(method) and not name.startswith("_"):
                assert inspect.getdoc(method), f"{kind.__name__}.{name}"

"""The async client, for programs on asyncio and on trio: ``async with dios.aio.open_node() as node:``.

Both loops have the same classes with the same methods. ``Sandbox`` is loaded at its first use. The other
libraries that wait have theirs in ``dios.lib.aio``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dios.client.aio.futures import result
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

if TYPE_CHECKING:
    from dios.lib.sandbox.async_sandbox import Sandbox

__all__ = [
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
    "Sandbox",
    "open_node",
    "result",
]


def __getattr__(name: str) -> object:
    """Load the sandbox at its first use."""
    if name != "Sandbox":
        raise AttributeError(f"module 'dios.aio' has no attribute {name!r}")
    from dios.lib.sandbox import async_sandbox  # noqa: PLC0415 - most programs on an event loop have none

    globals()[name] = async_sandbox.Sandbox
    return async_sandbox.Sandbox


def __dir__() -> list[str]:
    """Return the public names, loaded or not."""
    return __all__

"""The async client, for programs on asyncio and on trio: ``async with dios.aio.open_node() as node:``.

Both loops have the same classes with the same methods. ``Sandbox`` and
``RunningSandbox`` are loaded at their first use. The other
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
    from dios.lib.sandbox.async_running import RunningSandbox
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
    "RunningSandbox",
    "Sandbox",
    "open_node",
    "result",
]


def __getattr__(name: str) -> object:
    """Load the sandboxes at their first use: most programs on an event loop have none."""
    if name == "Sandbox":
        from dios.lib.sandbox.async_sandbox import Sandbox as loaded  # noqa: N813, PLC0415 - see above
    elif name == "RunningSandbox":
        from dios.lib.sandbox.async_running import RunningSandbox as loaded  # type: ignore[assignment]  # noqa: N813, PLC0415 - see above
    else:
        raise AttributeError(f"module 'dios.aio' has no attribute {name!r}")
    globals()[name] = loaded
    return loaded


def __dir__() -> list[str]:
    """Return the public names, loaded or not."""
    return __all__

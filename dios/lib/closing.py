"""Closing references whose nodes may be gone: then they are closed already."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from dios.errors import DiosError

if TYPE_CHECKING:
    from dios.client.aio.node import AsyncReference


class _Closable(Protocol):
    """A reference, or something else with a connection."""

    def close(self) -> object:
        """Close it."""


def close_all(several: Iterable[_Closable]) -> None:
    """Close references."""
    for closable in several:
        with suppress(DiosError):
            closable.close()


async def close_all_async(references: Iterable[AsyncReference]) -> None:
    """Close references of an asynchronous session."""
    for reference in references:
        with suppress(DiosError):
            await reference.close()

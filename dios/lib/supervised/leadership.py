"""The node that acts for a user: the one with the smallest id among living nodes with the user's records."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from dios import limits

if TYPE_CHECKING:
    from dios.client.ops.cluster import Member


class Leadership:
    """The right of this node to act, in its own view of the members, after it has led for a while."""

    def __init__(self) -> None:
        self._since: float | None = None

    def holds(self, members: Sequence[Member], here: Member, holders: Collection[str], now: float) -> bool:
        """Return True if this node leads and has led for SERVICE_SETTLE_MS; ``holders`` have the records."""
        first = min(
            member.node for member in members if member.here or (member.usable and member.name in holders)
        )
        if first != here.node or here.name not in holders:
            self._since = None
            return False
        if self._since is None:
            self._since = now
        return now - self._since >= limits.SERVICE_SETTLE_MS / 1000

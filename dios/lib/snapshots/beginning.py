"""The order for what a sandbox begins with: an image, a snapshot, packages, or none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dios.wire.types import Isolation

if TYPE_CHECKING:
    from dios.lib.snapshots.snapshots import SandboxSnapshot


class Beginning(NamedTuple):
    """The arguments of a sandbox that name its files and packages; empty ones, and no wheels, are none.

    A task with this ``isolation`` tries at the node what is brought there, if that is an image.
    """

    image: str = ""
    snapshot: str | SandboxSnapshot = ""
    template: str = ""
    packages: tuple[str, ...] = ()
    wheels: str | None = None
    isolation: Isolation = Isolation.KERNEL

    @property
    def is_plain(self) -> bool:
        """True if nothing has to be brought to the node."""
        return not (self.image or self.snapshot or self.packages or self.wheels is not None)

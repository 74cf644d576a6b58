"""The order for what a sandbox begins with: an image, a snapshot, packages, or none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from dios.lib.snapshots.snapshots import SandboxSnapshot


class Beginning(NamedTuple):
    """The arguments of a sandbox that name its files and packages; empty ones, and no wheels, are none."""

    image: str = ""
    snapshot: str | SandboxSnapshot = ""
    template: str = ""
    packages: tuple[str, ...] = ()
    wheels: str | None = None

    @property
    def is_plain(self) -> bool:
        """True if nothing has to be brought to the node."""
        return not (self.image or self.snapshot or self.packages or self.wheels is not None)

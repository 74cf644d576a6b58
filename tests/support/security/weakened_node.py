"""A node that takes what belongs to other tasks for the caller's: their groups, references and buffers.

It is only for tests: they show that the attempts by calls can fail. Run it as a daemon's module.
"""

from __future__ import annotations

import sys
from typing import Final

from dios.core.calls import resolution, rights
from dios.core.model.records import Buffer, Holder, Reference
from dios.errors import BadReferenceError
from dios.ids import BufferId, Name
from dios.node import daemon
from dios.wire.types import Permission

_holders: Final[list[Holder]] = []
_honestly_made: Final = Holder.__init__
_honestly_held: Final = rights.held
_honestly_own: Final = rights.own_buffer


def _make(holder: Holder, *args: object, **kwargs: object) -> None:
    _honestly_made(holder, *args, **kwargs)  # type: ignore[arg-type] # whatever it takes
    _holders.append(holder)


def _search_all(task: Holder, group_ref: int) -> tuple[tuple[Name, ...], Reference | None]:
    del task, group_ref
    return tuple({name for holder in _holders for name in holder.memberships}), None


def _held_by_any(task: Holder, ref_id: int, right: Permission = Permission.NONE) -> Reference:
    for holder in (task, *_holders):
        try:
            return _honestly_held(holder, ref_id, right)
        except BadReferenceError:
            continue
    return _honestly_held(task, ref_id, right)


def _buffer_of_any(task: Holder, buffer_id: int) -> Buffer:
    for holder in _holders:
        if BufferId(buffer_id) in holder.buffers:
            return holder.buffers[BufferId(buffer_id)]
    return _honestly_own(task, buffer_id)


def main() -> int:
    """Break the rules, and run the daemon."""
    Holder.__init__ = _make  # type: ignore[method-assign, assignment] # as somebody might break it
    resolution._groups_to_search = _search_all
    rights.held = _held_by_any
    rights.own_buffer = _buffer_of_any
    return daemon.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())

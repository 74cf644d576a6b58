"""The records of a user's services and kept replicas: objects under names that only the user's sessions find.

A name follows from the principal and the secret of the cluster, so that it is the same on every node. No
task can derive it, also if it is a member of the user's home group: a record says what the nodes do in the
name of the user. The special names SERVICES and KEPT stand for them. ``dios.lib.supervised`` and
``dios.lib.kept`` have the content of the objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from dios.core.calls import groups
from dios.core.model.names import KEPT, SERVICES, internal_name, kept_name, services_name
from dios.core.model.records import Holder, PhysicalObject, Session
from dios.core.model.state import State
from dios.core.step import Step
from dios.errors import ExistsError, InvalidError, NotPermittedError
from dios.ids import Name, Principal
from dios.wire import messages
from dios.wire.types import Flag, NameKind, ObjectType

FLAGS: Final = Flag.SERVICES | Flag.KEPT

_TYPES: Final = frozenset({ObjectType.DURABLE_BLOB, ObjectType.SHMEM_BLOB})
_NAMES: Final[Mapping[int, Callable[[bytes, str], Name]]] = {SERVICES: services_name, KEPT: kept_name}
_KINDS: Final = {int(Flag.SERVICES): SERVICES, int(Flag.KEPT): KEPT}


def groups_for(step: Step, task: Holder, call: messages.Create) -> tuple[Name, ...]:
    """Return the group of a new record: the home group of the caller, which must be a session.

    Raises:
        NotPermittedError: the caller is a task.
        InvalidError: the node is in no cluster, or the call has groups, another type, or both flags.
        ExistsError: this node has such an object of the principal already.
    """
    if not isinstance(task, Session):
        raise NotPermittedError("only a user's process makes these records; a task has no name for them")
    if not step.state.secret:
        raise InvalidError("this node is in no cluster, so it has no such records; `dios up` makes one")
    kind = _KINDS.get(call.flags & FLAGS)
    if kind is None or call.groups or call.object_type not in _TYPES or call.name_kind is not NameKind.RANDOM:
        raise InvalidError("such a record is a blob of one kind, in no group but the home group of its user")
    home = groups.home_of(step, task.principal)
    if any(record.type is call.object_type for record in _found(step.state, home, task.principal, kind)):
        raise ExistsError("this node has these records of this user already; look up their special name")
    return () if home.name is None else (home.name,)


def name_of(secret: bytes, flags: int, principal: str) -> Name:
    """Return the name of a new record, by the flag of the call."""
    return _NAMES[_KINDS[flags & FLAGS]](secret, principal)


def searched(step: Step, task: Holder, number: int) -> tuple[Name, Name] | None:
    """Return the name and the group that a lookup of a special name means; None if it finds no records."""
    home = step.state.homes.get(task.principal)
    derived = _NAMES.get(number)
    if derived is None or not isinstance(task, Session) or not step.state.secret:
        return None
    return (
        None if home is None or home.name is None else (derived(step.state.secret, task.principal), home.name)
    )


def is_record(state: State, name: Name | None, owner: str) -> bool:
    """Return True if this is the name of records of this principal."""
    return bool(state.secret) and any(name == derived(state.secret, owner) for derived in _NAMES.values())


def principals(state: State, kind: int) -> Iterator[Principal]:
    """Yield the principals with records of a kind (SERVICES or KEPT) on this node."""
    if state.secret:
        for principal, home in tuple(state.homes.items()):
            if any(record.type is ObjectType.DURABLE_BLOB for record in _found(state, home, principal, kind)):
                yield principal


def _found(state: State, home: PhysicalObject, principal: Principal, kind: int) -> Iterator[PhysicalObject]:
    if home.name is not None:
        name = internal_name(_NAMES[kind](state.secret, principal), home.name)
        for record in state.find_named((name,)):
            if record.owner == principal and not record.zombie:
                yield record

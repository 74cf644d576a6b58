"""The records of a user's supervised services: objects under one name, which only the user's sessions find.

The name follows from the principal and the secret of the cluster, so that it is the same on every node. No
task can derive it, also if it is a member of the user's home group: a record says what is started in the name
of the user. The special name SERVICES stands for it. ``dios.lib.supervised`` has the content of the objects.
"""

from __future__ import annotations

from collections.abc import Iterator

from dios.core.calls import groups
from dios.core.model.names import internal_name, services_name
from dios.core.model.records import Holder, PhysicalObject, Session
from dios.core.model.state import State
from dios.core.step import Step
from dios.errors import ExistsError, InvalidError, NotPermittedError
from dios.ids import Name, Principal
from dios.wire import messages
from dios.wire.types import NameKind, ObjectType

_TYPES = frozenset({ObjectType.DURABLE_BLOB, ObjectType.SHMEM_BLOB})


def groups_for(step: Step, task: Holder, call: messages.Create) -> tuple[Name, ...]:
    """Return the group of a new record: the home group of the caller, which must be a session.

    Raises:
        NotPermittedError: the caller is a task.
        InvalidError: the node is in no cluster, or the call has groups or another type.
        ExistsError: this node has such an object of the principal already.
    """
    if not isinstance(task, Session):
        raise NotPermittedError("only a user's process records services; a task has no name for them")
    if not step.state.secret:
        raise InvalidError("this node is in no cluster, so it keeps no services; `dios up` makes a cluster")
    if call.groups or call.object_type not in _TYPES or call.name_kind is not NameKind.RANDOM:
        raise InvalidError("a record of services is a blob, in no group but the home group of its user")
    home = groups.home_of(step, task.principal)
    if any(found.type is call.object_type for found in _found(step.state, home, task.principal)):
        raise ExistsError("this node has the services of this user already; look up their special name")
    return () if home.name is None else (home.name,)


def searched(step: Step, task: Holder) -> tuple[Name, Name] | None:
    """Return the name and the group that a lookup of the special name means; None if it finds nothing."""
    home = step.state.homes.get(task.principal)
    if not isinstance(task, Session) or not step.state.secret or home is None or home.name is None:
        return None
    return services_name(step.state.secret, task.principal), home.name


def is_record(state: State, name: Name | None, owner: str) -> bool:
    """Return True if this is the name of the services of this principal."""
    return bool(state.secret) and name == services_name(state.secret, owner)


def principals(state: State) -> Iterator[Principal]:
    """Yield the principals whose services are recorded on this node."""
    if state.secret:
        for principal, home in tuple(state.homes.items()):
            if any(one.type is ObjectType.DURABLE_BLOB for one in _found(state, home, principal)):
                yield principal


def _found(state: State, home: PhysicalObject, principal: Principal) -> Iterator[PhysicalObject]:
    if home.name is not None:
        name = internal_name(services_name(state.secret, principal), home.name)
        yield from (one for one in state.find_named((name,)) if not one.zombie)

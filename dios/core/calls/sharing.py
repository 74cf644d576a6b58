"""Shares: sessions of another principal read the objects of a group until a stated time (ADR 0082).

The record of a share is an object in the home group of its issuer. Its name binds group, reader and end, and
no other call makes a name like that, so that the record proves the share. A session that accepts it looks the
record up with its own principal as the reader, and keeps a reference to it. Everything that it finds in the
group comes from that reference, and goes when the record is destroyed or the time is over.
"""

from __future__ import annotations

from dios import limits
from dios.core import effects, lifetimes
from dios.core.calls import groups, rights
from dios.core.calls.handlers import handles
from dios.core.effects import WriteSource
from dios.core.model.accounts import require_object
from dios.core.model.names import home_name, internal_name, share_name
from dios.core.model.records import Holder, PhysicalObject, Provenance, Session, descriptors_of_object
from dios.core.model.type_rules import RULES
from dios.core.remote import remote_lookup
from dios.core.step import Step
from dios.errors import InvalidError, LimitError, NotPermittedError
from dios.ids import Name, ObjectId, Principal
from dios.wire import messages
from dios.wire.types import Buffering, ObjectType, Permission, Resource


@handles(messages.ShareGroup)
def share(step: Step, task: Holder, seq: int, call: messages.ShareGroup) -> None:
    """Make the record of a share. The caller must be a session that is a member of the group.

    Raises:
        NotPermittedError: the caller is a task, or no member of the group.
        InvalidError: nobody is named, or the share ends in the past or in more than a year.
    """
    reference = rights.typed(rights.living(rights.held(task, call.group)), ObjectType.GROUP)
    group = reference.object
    if not isinstance(task, Session) or not rights.is_member(task, reference) or group.name is None:
        raise NotPermittedError(
            "only a process of a user who is a member of the group shares it", fingerprint=group.fingerprint
        )
    if not call.reader:
        raise InvalidError("a share is for one user: name the user, as uid:1234")
    if not step.now < call.expires_ns <= step.now + limits.LIFETIME_NS_MAX:
        raise InvalidError("a share ends in the future, and at most a year from now")
    name = share_name(call.nonce, group.name, call.reader, call.expires_ns)
    shown = make_record(step, task, name)
    step.audit(task, "share", "ok", group.fingerprint, f"with {call.reader}")
    step.answer(task, seq, messages.Created(name, shown))


def make_record(step: Step, task: Session, name: Name) -> messages.Reference:
    """Make an empty durable object with this name in the caller's home group; return the reference to it.

    Raises:
        LimitError: the caller has no room for it.
    """
    home = groups.home_of(step, task.principal)
    names = () if home.name is None else (home.name,)
    accounts = (task.account, *step.state.accounts_of_groups(names))
    task.table.require_room()
    require_object(
        accounts,
        0,
        descriptors_of_object(ObjectType.DURABLE_BLOB, Buffering.DOUBLE),
        volatile=False,
    )
    rules = RULES[ObjectType.DURABLE_BLOB]
    record = PhysicalObject(
        ObjectId(step.state.fresh_id()),
        ObjectType.DURABLE_BLOB,
        name,
        names,
        task.principal,
        deletion=rules.deletion,
        proximity=rules.proximity,
        accounts=accounts,
    )
    step.state.add_object(record)
    step.put(record, WriteSource())
    step.emit(effects.ApplyWrite(record.id, WriteSource(), durable=True))
    return lifetimes.grant_shown(step, task, record, Permission.ALL, Provenance.CREATED)


@handles(messages.AcceptShare)
def accept(step: Step, task: Holder, seq: int, call: messages.AcceptShare) -> None:
    """Look for the record of a share with the caller's principal, here and on other nodes.

    Raises:
        NotPermittedError: the caller is a task, or the time of the share is over.
        LimitError: the session reads too many groups of others already.
    """
    if not isinstance(task, Session):
        raise NotPermittedError("only a user's process accepts a share; a task is given references")
    if call.expires_ns <= step.now:
        raise NotPermittedError("the time of the grant is over. Ask its issuer for a new one.")
    name = share_name(call.nonce, call.group, task.principal, call.expires_ns)
    look_for_record(step, task, seq, name, call)


def look_for_record(step: Step, task: Session, seq: int, name: Name, call: messages.AcceptShare) -> None:
    """Let the session read the group if the record with this name exists, here or on another node.

    Raises:
        LimitError: the session reads too many groups of others already.
    """
    if len(task.shares) >= limits.GROUP_SHARES_PER_SESSION_MAX and Name(call.group) not in task.shares:
        raise LimitError(f"the session reads {len(task.shares)} groups of others already. Connect again.")
    task.table.require_room(2)
    task.account.require(Resource.REFERENCES, 2)
    home = _home_name(step, Principal(call.issuer))
    names = (internal_name(name, home),)
    target = next(iter(step.state.find_named(names)), None)
    if target is None and step.state.cluster is not None:
        wanted = messages.Lookup(name, limit=1)
        remote_lookup.search(step, task, seq, wanted, (), names, accepts=call)
        return
    record = None
    if target is not None:
        record = lifetimes.grant(
            step, task, target, Permission.READ, Provenance.SHARED, expires_ns=call.expires_ns
        )
    groups.enter_share(step, task, seq, call, record, incomplete=False)


def _home_name(step: Step, issuer: Principal) -> Name:
    """Return the name of the issuer's home group, or one that no group has."""
    if step.state.secret:
        return home_name(step.state.secret, issuer)
    home = step.state.homes.get(issuer)
    return Name(bytes(limits.NAME_BYTES)) if home is None or home.name is None else home.name

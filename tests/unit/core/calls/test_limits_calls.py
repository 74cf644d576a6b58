"""Who may set and see limits, and which there are."""

from __future__ import annotations

import msgspec
import pytest

from dios.core import effects
from dios.errors import Code, ProtocolError
from dios.ids import Principal
from dios.wire import messages
from dios.wire.codec import decode_request, encode_request
from dios.wire.messages import Bound
from dios.wire.types import ObjectType, Resource, Scope
from tests.support.core.harness import Client, Node
from tests.support.core.limits import SCOPES, Office, anonymous, over

OTHER = Principal("uid:7")
ROOT = Principal("uid:0")
_LENGTH_BYTES = 4
ONE = (Bound(Resource.OBJECTS, 1),)


@pytest.fixture
def office(node: Node) -> Office:
    """Somebody who sets limits, and a task that has them."""
    return Office(node)


def of(principal: str, bounds: tuple[Bound, ...] = ONE) -> messages.SetLimits:
    """A call that sets limits of a principal."""
    return messages.SetLimits(Scope.PRINCIPAL, bounds, principal=principal)


def rows(client: Client) -> list[tuple[Scope, str]]:
    """Whose limits a client sees."""
    listed = client.ask(messages.LimitRows, messages.ListLimits()).rows
    return [(row.scope, row.subject) for row in listed if row.scope in SCOPES]


# -- who --------------------------------------------------------------------------------------------
def test_pure_tasks_neither_see_nor_set(office: Office) -> None:
    """A pure task learns nothing of limits and sets none, its own included."""
    worker = office.worker
    assert worker.refused(messages.ListLimits()) == Code.EPERM
    assert worker.refused(of("uid:1000")) == Code.EPERM
    assert worker.refused(messages.SetLimits(Scope.TASK, ONE, worker.self_ref)) == Code.EPERM
    assert worker.refused(messages.SetLimits(Scope.GROUP, ONE, worker.groups[0])) == Code.EPERM


def test_other_principals_set_nothing(office: Office) -> None:
    """Who does not run the node sets no limits, not even of what is its own."""
    other = office.node.session(OTHER)
    group = other.create(ObjectType.GROUP).reference.ref
    task = other.run()
    assert other.refused(of("uid:7")) == Code.EPERM
    assert other.refused(messages.SetLimits(Scope.GROUP, ONE, group)) == Code.EPERM
    assert other.refused(messages.SetLimits(Scope.TASK, ONE, task.reference.ref)) == Code.EPERM


def test_root_sets(office: Office) -> None:
    """Root sets limits of anybody."""
    root = office.node.session(ROOT)
    row = root.ask(messages.LimitRows, of("uid:1000")).rows[0]
    assert (row.scope, row.subject, row.limits[Resource.OBJECTS]) == (Scope.PRINCIPAL, "uid:1000", 1)


def test_setting_is_audited(office: Office) -> None:
    """Who set which limit of whom stands in the audit log."""
    office.admin.ask(messages.LimitRows, of("uid:7", (*ONE, Bound(Resource.CPU_MS, None))))
    (record,) = [effect for effect in office.node.outcome.after if isinstance(effect, effects.Audit)]
    assert (record.action, record.outcome, record.principal) == ("limit", "ok", "uid:1000")
    assert record.detail == "uid:7: objects 1, cpu_ms none"


# -- what is seen -----------------------------------------------------------------------------------
def test_everybody_sees_its_own(office: Office) -> None:
    """A principal sees itself, its session's groups and its own tasks; nothing of others."""
    other = office.node.session(OTHER)
    task = other.run()
    home = other.welcome.home
    assert home is not None
    assert rows(other) == [
        (Scope.PRINCIPAL, "uid:7"),
        (Scope.GROUP, home.fingerprint),
        (Scope.TASK, task.welcome.self_ref.fingerprint),
    ]


def test_the_nodes_own_user_sees_every_principal(office: Office) -> None:
    """The node's own user sees every principal that has used the node."""
    office.node.session(OTHER)
    subjects = [subject for scope, subject in rows(office.admin) if scope is Scope.PRINCIPAL]
    assert subjects == ["uid:1000", "uid:7"]


def test_ended_tasks_are_not_listed(office: Office) -> None:
    """A task that is over has no row; what it used stays with those above it."""
    before = rows(office.admin)
    office.node.end(office.worker.task, cpu_ms=5)
    gone = (Scope.TASK, office.worker.welcome.self_ref.fingerprint)
    assert rows(office.admin) == [row for row in before if row != gone]
    assert office.used(Scope.PRINCIPAL, Resource.CPU_MS) == 5


# -- what is refused --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "text",
    ["", "root", "uid:", "uid:-1", "uid:x", "uid:007", "uid:4294967295", "uid:99999999999", "uid:²", "gid:7"],
)
def test_bad_principals(office: Office, text: str) -> None:
    """Only what the node itself writes for a user names one, so that nobody has two accounts."""
    assert office.admin.refused(of(text)) == Code.EINVAL


@pytest.mark.parametrize("text", ["uid:0", "uid:7", "uid:65534", "uid:4294967294"])
def test_good_principals(office: Office, text: str) -> None:
    """Limits of a user can be set before the user comes, and hold then."""
    office.admin.ask(messages.LimitRows, of(text))
    client = office.node.session(Principal(text))
    client.ask(messages.Created, anonymous())
    over(client, anonymous())


def test_home_groups_have_none(office: Office) -> None:
    """A home group's limits are its principal's, and are set there."""
    home = office.admin.welcome.home
    assert home is not None
    assert office.admin.refused(messages.SetLimits(Scope.GROUP, ONE, home.ref)) == Code.EINVAL


def test_sessions_and_the_ended_have_none(office: Office) -> None:
    """Limits of a task are set while it runs; a person's session is limited by its principal."""
    admin = office.admin
    assert admin.refused(messages.SetLimits(Scope.TASK, ONE, admin.self_ref)) == Code.ESRCH
    office.node.end(office.worker.task)
    call = messages.SetLimits(Scope.TASK, ONE, office.worker.reference.ref)
    assert admin.refused(call) == Code.ESRCH


def test_scopes_name_what_they_mean(office: Office) -> None:
    """A reference to something else, or to nothing, is refused."""
    admin = office.admin
    blob = admin.create().reference.ref
    assert admin.refused(messages.SetLimits(Scope.TASK, ONE, blob)) == Code.EINVAL
    assert admin.refused(messages.SetLimits(Scope.GROUP, ONE, blob)) == Code.EINVAL
    assert admin.refused(messages.SetLimits(Scope.GROUP, ONE, 0)) == Code.EBADF
    assert admin.refused(messages.SetLimits(Scope.TASK, ONE, 12345)) == Code.EBADF


def test_unknown_resources_stop_at_the_wire() -> None:
    """A resource or scope that there is not, no bound at all, or a value below 0 is no message."""
    raw = msgspec.msgpack.decode(encode_request(1, of("uid:7"))[_LENGTH_BYTES:])
    assert isinstance(raw, list)
    seq, call = raw
    assert decode_request(msgspec.msgpack.encode([seq, call])).call == of("uid:7")
    for place, value in ((2, [[99, 1]]), (2, []), (2, [[0, -1]]), (2, [[0, 1]] * 99), (1, 99)):
        bent = [*call[:place], value, *call[place + 1 :]]
        with pytest.raises(ProtocolError):
            decode_request(msgspec.msgpack.encode([seq, bent]))


def test_the_last_bound_for_a_resource_holds(office: Office) -> None:
    """Naming a resource twice in one call leaves the last value, in the account as in the record."""
    call = of("uid:7", (Bound(Resource.OBJECTS, 5), Bound(Resource.OBJECTS, 2)))
    row = office.admin.ask(messages.LimitRows, call).rows[0]
    assert row.limits[Resource.OBJECTS] == 2
    (home,) = [record for record in office.node.stored.values() if record.owner == "uid:7"]
    assert home.limits == (Bound(Resource.OBJECTS, 2),)

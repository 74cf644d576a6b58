"""The tables of a running node, with which its own user can examine a defect or a full table.

Rows have fingerprints, counts, states and tags of secrecy, and never a name, the label of a task, an argument
or the id of a reference.
One answer has at most ``TABLE_ROWS_MAX`` rows of one table, so that no step takes long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

from dios.core.calls import rights, user_records
from dios.core.calls.handlers import handles
from dios.core.model.accounts import Account
from dios.core.model.names import KEPT, SERVICES
from dios.core.model.records import Holder, LocalHolder, PhysicalObject, RemoteTask, Session, Task
from dios.core.model.state import State
from dios.core.remote import forwarding, remote_calls
from dios.core.remote.peers import Peer
from dios.core.step import Step
from dios.errors import InvalidError, NotPermittedError, NotSupportedError
from dios.wire import messages
from dios.wire.codec import TABLES_VERSION
from dios.wire.types import Brand, Resource

TABLE_ROWS_MAX: Final = 256
WATCHED_MAX: Final = 8
"""The row of a waiting call has the fingerprints of at most this number of the objects that it watches."""

METRICS: Final = "metrics"
"""The table of the node's metrics, which the host fills."""
LOG: Final = "log"
"""The table of the newest records of the node's log. The host has its rows; the core leaves ``start`` for it
in ``following``.
"""
ENVIRONMENTS: Final = "environments"
"""The table of the node's environments, filled by the host in the same way."""
ENVIRONMENT_COLUMNS: Final = (
    "environment", "principal", "bytes", "files", "created_ns", "used_ns", "in_use", "packages",
)  # fmt: skip
LOG_COLUMNS: Final = ("position", "number", "level", "from", "message", "fields")

Row: TypeAlias = tuple[int | str, ...]


_FROM_A_POSITION: Final = frozenset({LOG, ENVIRONMENTS})


class Table(NamedTuple):
    """A table: its columns, and a function that returns its rows from an index on."""

    columns: tuple[str, ...]
    rows: Callable[[State, int], Iterable[Row]]


@handles(messages.ReadTable)
def read_table(step: Step, task: Holder, seq: int, call: messages.ReadTable) -> None:
    """Answer with the next rows of a table; without a table's name, with the names of all tables.

    ``TABLE@NODE`` is a table of another node, which answers itself.

    Raises:
        NotPermittedError: the caller acts neither for the node's own user nor for root, or is a task on a
            node with labels.
        InvalidError: no table has this name.
        UnreachableError: no node has this name, or it does not answer.
        NotSupportedError: the other node has a release whose tables only its own users can read.
    """
    rights.require_nodes_own(step.state, task, "read the tables of this node")
    if step.state.labelled and task.brand is not Brand.LEGACY:
        raise NotPermittedError(
            "the tables have numbers that labelled tasks chose; on this node only a user's process reads them"
        )
    names = tuple(TABLES)
    name, _, host = call.table.partition("@")
    if host:
        peer = remote_calls.peer_named(step, host)
        if peer is not None:
            if 0 < peer.version < TABLES_VERSION:
                raise NotSupportedError(
                    f"cannot read a table of {host}: it has an earlier release. Update it, or ask it itself."
                )
            forwarding.pass_on(step, task, seq, call, peer)
            return
        call = messages.ReadTable(name, call.start)
    if not call.table:
        step.answer(task, seq, messages.TableRows("", (), (), 0, names))
        return
    table = TABLES.get(call.table)
    if table is None:
        raise InvalidError(f"no table is called {call.table[:40]!r}; choose one of {', '.join(names)}")
    if call.table in _FROM_A_POSITION:
        step.answer(task, seq, messages.TableRows(call.table, table.columns, (), call.start, names))
        return
    rows = tuple(islice(table.rows(step.state, call.start), TABLE_ROWS_MAX + 1))
    step.spend(len(rows) // 4)
    more = len(rows) > TABLE_ROWS_MAX
    rows = rows[:TABLE_ROWS_MAX]
    following = call.start + TABLE_ROWS_MAX if more else 0
    step.answer(task, seq, messages.TableRows(call.table, table.columns, rows, following, names))


def _nested(groups: Iterable[tuple[int, Callable[[int], Iterable[Row]]]], start: int) -> Iterator[Row]:
    """Yield the rows of several parts from an index on; skip earlier parts by their length."""
    for length, rows in groups:
        if start >= length:
            start -= length
            continue
        yield from rows(start)
        start = 0


def _node(state: State, start: int) -> Iterator[Row]:
    cluster = state.cluster
    facts: list[Row] = [
        ("node", 0 if cluster is None else cluster.here.node),
        ("epoch", 0 if cluster is None else cluster.here.epoch),
        ("next_ticket", state.next_ticket),
        ("durable_ticket", state.settled),
        ("names", len(state.names)),
        ("idle_objects", len(state.idle)),
        ("objects_in_store_only", state.dormant_count),
        ("dropped", len(state.dropped)),
        ("shutting_down", int(state.shutting_down)),
        ("fitness", state.fitness.name),
        ("queue_version", state.queue.version),
    ]
    return iter(facts[start:])


def _object(target: PhysicalObject) -> Row:
    return (
        target.fingerprint,
        target.type.name,
        target.persistence.name,
        target.deletion.name,
        target.owner,
        target.size,
        target.v_r,
        target.v_w,
        target.a_r,
        target.a_w,
        target.dirty,
        int(target.zombie),
        target.pinned,
        len(target.references),
        len(target.waiters),
        len(target.watchers),
        target.ticket,
        len(target.undo),
        " ".join(target.secrecy),
    )


def _objects(state: State, start: int) -> Iterator[Row]:
    return map(_object, islice(state.objects.values(), start, None))


_KINDS: Final = {Task: "task", Session: "session", RemoteTask: "remote"}


def _task(task: Holder) -> Row:
    local = task if isinstance(task, LocalHolder) else None
    return (
        task.object.fingerprint,
        _KINDS[type(task)],
        task.home,
        task.state.name,
        task.brand.name,
        local.cause.name if local is not None else "",
        task.principal,
        local.pid if local is not None else 0,
        len(task.memberships),
        len(task.table),
        len(task.buffers),
        len(task.remote_buffers),
        len(task.pending),
        len(local.events) if local is not None else 0,
        len(task.children),
        len(local.remote_children) if local is not None else 0,
    )


def _tasks(state: State, start: int) -> Iterator[Row]:
    return map(_task, islice(state.everybody(), start, None))


def _references(state: State, start: int) -> Iterator[Row]:
    def of(task: Holder) -> Callable[[int], Iterable[Row]]:
        return lambda first: (
            (
                task.object.fingerprint,
                reference.object.fingerprint,
                int(reference.permissions),
                reference.provenance.value,
                reference.slot,
                reference.object.home,
                reference.expires_ns,
                len(reference.buffers),
                len(reference.descendants),
                reference.origin.task.object.fingerprint if reference.origin is not None else "",
                " ".join(reference.object.secrecy),
            )
            for reference in islice(task.table, first, None)
        )

    return _nested(((len(task.table), of(task)) for task in state.everybody()), start)


def _waiting(state: State, start: int) -> Iterator[Row]:
    return (
        (
            row.task.object.fingerprint,
            row.seq,
            type(row.call).__name__,
            len(row.watched),
            row.deadline or 0,
            len(row.requests),
            type(row.progress).__name__ if row.progress is not None else "",
            " ".join(target.fingerprint for target in islice(row.watched, WATCHED_MAX)),
        )
        for row in islice(state.pending, start, None)
    )


def _requests(state: State, start: int) -> Iterator[Row]:
    def of(peer: Peer) -> Callable[[int], Iterable[Row]]:
        return lambda first: (
            (
                peer.node,
                request.number,
                type(request.body).__name__,
                type(request.then).__name__ if request.then is not None else "",
                request.repeats,
                request.silent_since,
                request.repeat_at,
            )
            for request in islice(peer.asked.values(), first, None)
        )

    peers = [] if state.cluster is None else list(state.cluster.peers.values())
    return _nested(((len(peer.asked), of(peer)) for peer in peers), start)


def _peers(state: State, start: int) -> Iterator[Row]:
    peers = [] if state.cluster is None else list(state.cluster.peers.values())
    return (
        (
            peer.node,
            peer.epoch,
            int(peer.connected),
            int(peer.cut_off),
            peer.dead_since or 0,
            len(peer.asked),
            len(peer.answers),
            len(peer.remote_tasks),
            len(peer.proxies),
            len(peer.notices),
        )
        for peer in islice(peers, start, None)
    )


def _account(account: Account) -> Row:
    return (account.scope.name, account.subject, *account.used)


def _accounts(state: State, start: int) -> Iterator[Row]:
    every = (state.account, *state.principals.values())
    return map(_account, islice(every, start, None))


def _services(state: State, start: int) -> Iterator[Row]:
    return ((principal,) for principal in islice(user_records.principals(state, SERVICES), start, None))


def _kept(state: State, start: int) -> Iterator[Row]:
    return ((principal,) for principal in islice(user_records.principals(state, KEPT), start, None))


def _story(state: State, start: int) -> Iterator[Row]:
    return islice(state.story, start, None)


def _no_rows(state: State, start: int) -> Iterator[Row]:
    del state, start
    return iter(())


TABLES: Final[dict[str, Table]] = {
    "node": Table(("fact", "value"), _node),
    "objects": Table(
        (
            "fingerprint", "type", "persistence", "deletion", "owner", "size", "v_r", "v_w", "a_r", "a_w",
            "dirty", "zombie", "pinned", "references", "waiters", "watchers", "ticket", "undo",
            "secrecy",
        ),
        _objects,
    ),
    "tasks": Table(
        (
            "fingerprint", "kind", "home", "state", "brand", "cause", "principal", "pid", "memberships",
            "references", "buffers", "remote_buffers", "waiting", "events", "children", "remote_children",
        ),
        _tasks,
    ),
    "references": Table(
        (
            "task", "object", "permissions", "provenance", "slot", "home", "expires_ns", "buffers",
            "descendants", "origin", "secrecy",
        ),
        _references,
    ),
    "waiting": Table(
        ("task", "seq", "call", "watched", "deadline_ns", "requests", "progress", "objects"), _waiting
    ),
    "requests": Table(
        ("node", "number", "request", "continuation", "repeats", "silent_since_ns", "repeat_at_ns"),
        _requests,
    ),
    "peers": Table(
        (
            "node", "epoch", "connected", "cut_off", "dead_since_ns", "requests", "answers", "remote_tasks",
            "proxies", "notices",
        ),
        _peers,
    ),
    "story": Table(("now_ns", "event", "task", "object", "seq"), _story),
    "services": Table(("principal",), _services),
    "kept": Table(("principal",), _kept),
    METRICS: Table(("metric", "labels", "value"), _no_rows),
    LOG: Table(LOG_COLUMNS, _no_rows),
    ENVIRONMENTS: Table(ENVIRONMENT_COLUMNS, _no_rows),
    "accounts": Table(("scope", "subject", *(resource.name.lower() for resource in Resource)), _accounts),
}  # fmt: skip

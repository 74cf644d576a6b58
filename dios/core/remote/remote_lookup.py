"""Resolution on other nodes: a question to all that live, and the first answers (thesis §4.3.3, §4.8).

Not for: the local table, which is always looked at first (``dios.core.calls.resolution``). What is sent
depends on
neither whether the name exists nor whether the caller is a member of the group.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from dios import limits
from dios.core.model import groups
from dios.core.model.accounts import require_each
from dios.core.model.objects import PhysicalObject
from dios.core.model.pending import Pending
from dios.core.model.references import Provenance
from dios.core.model.tasks import Task
from dios.core.remote import forwarding, proxies, requests
from dios.core.remote.peers import Cluster
from dios.core.step import Step
from dios.errors import DiosError
from dios.ids import InternalName, Name, NodeId, ObjectId, RefId
from dios.wire import dcp, messages
from dios.wire.nametext import fingerprint
from dios.wire.types import ObjectType, Permission, Resource

Gathered: TypeAlias = "list[tuple[NodeId, dcp.Found]]"


class _Search:
    """One lookup under way: what was found here, and what has come from others so far."""

    def __init__(
        self, task: Task, seq: int, call: messages.Lookup, here: tuple[PhysicalObject, ...], row: Pending
    ) -> None:
        self.task: Final = task
        self.seq: Final = seq
        self.call: Final = call
        self.here: Final = here
        self.row: Final = row
        self.names: tuple[InternalName, ...] = ()
        self.found: Gathered = []
        self.waiting: set[NodeId] = set()
        self.incomplete = False
        self.cached = False

    @property
    def count(self) -> int:
        return len(self.here) + sum(len(found.references) for _, found in self.found)


def search(
    step: Step,
    task: Task,
    seq: int,
    call: messages.Lookup,
    here: tuple[PhysicalObject, ...],
    names: tuple[InternalName, ...],
) -> None:
    """Look further: at first where the same names were found before, then everywhere."""
    cluster = requests.cluster_of(step)
    row = Pending(task, seq, call, ())
    step.wait(row)
    search_of = _Search(task, seq, call, here, row)
    search_of.names = names
    known = dict.fromkeys(node for name in names for node in cluster.cache.get(name, ()))
    if known and len(here) + len(known) >= call.limit:
        search_of.cached = True
        _ask(step, search_of, list(known))
    else:
        _ask_all(step, cluster, search_of)


def _ask_all(step: Step, cluster: Cluster, search_of: _Search) -> None:
    peers = list(cluster.living())
    search_of.cached = False
    search_of.incomplete = any(peer.dead_since is not None for peer in cluster.peers.values())
    if not peers:
        _done(step, search_of)
    else:
        _ask(step, search_of, [peer.node for peer in peers])


def _ask(step: Step, search_of: _Search, nodes: list[NodeId]) -> None:
    task = search_of.task
    search_of.waiting = set(nodes)
    body = dcp.Resolve(forwarding.caller_of(task), search_of.names, search_of.call.limit)
    for node in nodes:
        task.abroad.add(node)

        def arrived(later: Step, answer: dcp.Answer, node: NodeId = node) -> None:
            _arrived(later, search_of, node, answer)

        question = requests.ask(step, node, body, arrived)
        if question is not None:
            search_of.row.questions.append(question)


def _arrived(step: Step, search_of: _Search, node: NodeId, answer: dcp.Answer) -> None:
    if not step.state.pending.has(search_of.row):
        if isinstance(answer, dcp.Found):
            _let_go(step, search_of.task, node, answer.references)
        return
    search_of.waiting.discard(node)
    if isinstance(answer, dcp.Found):
        if answer.references:
            search_of.found.append((node, answer))
    else:
        search_of.incomplete = True
    if search_of.count >= search_of.call.limit or not search_of.waiting:
        _done(step, search_of)


def _done(step: Step, search_of: _Search) -> None:
    cluster = requests.cluster_of(step)
    if search_of.cached and search_of.count < search_of.call.limit:
        # The one failed use after which the cache is right again.
        for name in search_of.names:
            cluster.cache.pop(name, None)
        for node, found in search_of.found:
            _let_go(step, search_of.task, node, found.references)
        search_of.found.clear()
        _ask_all(step, cluster, search_of)
        return
    step.state.pending.remove(search_of.row)
    _remember(cluster, search_of)
    task = search_of.task
    try:
        references = _granted(step, search_of)
    except DiosError as error:
        for node, found in search_of.found:
            _let_go(step, task, node, found.references)
        step.refuse(task, search_of.seq, error)
        return
    shown = fingerprint(search_of.call.name)
    step.audit(task, "lookup", "ok" if references else "empty", shown)
    step.answer(task, search_of.seq, messages.References(references, search_of.incomplete))


def _granted(step: Step, search_of: _Search) -> tuple[messages.Reference, ...]:
    task, limit = search_of.task, search_of.call.limit
    here = [target for target in search_of.here if not target.zombie][:limit]
    total = min(search_of.count, limit)
    task.table.require_room(total)
    task.account.require(Resource.REFERENCES, total)
    require_each((account for target in here for account in target.sharing), Resource.REFERENCES)
    references = [step.grant(task, target, Permission.ALL, Provenance.RESOLVED).public() for target in here]
    for node, found in search_of.found:
        owners = dict(found.owners)
        for place, told in enumerate(found.references):
            if len(references) >= limit:
                _let_go(step, task, node, found.references[place:])
                break
            if told.type is ObjectType.GROUP:
                _let_go(step, task, node, (told,))
                owner = owners.get(ObjectId(told.object), "")
                group = groups.known(step, dcp.GroupName(Name(search_of.call.name), owner))
                if group is not None and all(group.id != one.object for one in references):
                    granted = step.grant(task, group, Permission.ALL, Provenance.RESOLVED)
                    references.append(granted.public())
                continue
            references.append(proxies.adopt(step, task, node, told, Provenance.RESOLVED).public())
    return tuple(references)


def _remember(cluster: Cluster, search_of: _Search) -> None:
    """Where something was found, so that the next question need not go to all."""
    nodes = tuple(node for node, _ in search_of.found)
    if not nodes or len(search_of.names) > limits.LOOKUP_CACHED_NAMES_MAX:
        return
    for name in search_of.names:
        cluster.cache.pop(name, None)
        cluster.cache[name] = nodes
    while len(cluster.cache) > limits.LOOKUP_CACHE_MAX:
        del cluster.cache[next(iter(cluster.cache))]


def _let_go(step: Step, task: Task, node: NodeId, references: tuple[messages.Reference, ...]) -> None:
    """More than was asked for, or too late: the other node takes them back."""
    refs = tuple(RefId(told.ref) for told in references)
    if refs:
        requests.tell(step, node, dcp.Release(task.id, refs))

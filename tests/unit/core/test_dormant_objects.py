"""Objects that are only in the store: the core forgets them without notice, and reads them when named."""

from __future__ import annotations

from random import Random

import pytest

from dios.core import events
from dios.core.machine import Core
from dios.core.model import invariants
from dios.ids import ObjectId, Ticket
from dios.wire import messages
from dios.wire.types import Flag, ObjectType
from tests.support.core.harness import OWNER, Client, Entropy, Node
from tests.support.core.rows import DictRows

IDLE = 3


def lazy_node(seed: int = 1) -> tuple[Node, DictRows]:
    """A node that keeps few objects without references."""
    node = Node(seed)
    rows = DictRows(node.stored, IDLE)
    node.core = Core(Entropy(seed), OWNER, rows=rows)
    return node, rows


def restarted(node: Node, rows: DictRows) -> tuple[Node, Client]:
    """The same node after a restart, with a session."""
    again, again_rows = lazy_node(2)
    again.stored.update(node.stored)
    again.step(events.Recovered(again.now, again_rows.resident(), again_rows.use()))
    assert rows.stored == again_rows.stored
    return again, again.session()


def settle(node: Node) -> None:
    """Make everything durable."""
    node.step(events.Persisted(node.now, Ticket(node.core.state.next_ticket - 1)))


def make(client: Client, data: bytes = b"content", groups: tuple[int, ...] = ()) -> messages.Created:
    """Create a durable object and drop its reference."""
    call = messages.Create(ObjectType.DURABLE_BLOB, groups or (client.groups[0],), data=data)
    created = client.ask(messages.Created, call)
    client.ask(messages.Done, messages.Delete(created.reference.ref, int(Flag.HANDLE_ONLY)))
    settle(client.node)
    return created


def find(client: Client, created: messages.Created) -> tuple[messages.Reference, ...]:
    """Look an object up."""
    assert created.name is not None
    return client.ask(messages.References, messages.Lookup(created.name)).references


def test_objects_without_references_leave_the_memory_and_are_found_again() -> None:
    """Beyond the bound the oldest leave the tables; a lookup finds each as it was."""
    node, rows = lazy_node()
    client = node.session()
    every = [make(client, b"x" * number) for number in range(10)]
    state = node.core.state
    assert len(state.idle) == IDLE
    assert state.dormant_count == len(every) - IDLE
    assert every[0].reference.object not in state.objects
    for number, created in enumerate(every):
        (reference,) = find(client, created)
        assert (reference.object, reference.size) == (created.reference.object, number)
    assert rows.reads
    assert state.dormant_count == 0


def test_a_start_reads_no_row_that_nobody_names() -> None:
    """After a restart all are dormant and counted, and one is read when it is looked up."""
    node, rows = lazy_node()
    every = [make(node.session()) for _ in range(5)]
    again, client = restarted(node, rows)
    assert again.core.state.dormant_count == len(every)
    assert find(client, every[3])[0].object == every[3].reference.object
    assert again.core.state.dormant_count == len(every) - 1


def test_a_deleted_object_is_not_read_back_before_its_row_is_gone() -> None:
    """Until a removal is durable the store has the row, and no lookup finds it."""
    node, rows = lazy_node()
    created = make(node.session())
    again, client = restarted(node, rows)
    kept = dict(again.stored)
    (reference,) = find(client, created)
    client.ask(messages.Done, messages.Delete(reference.ref))
    again.stored.update(kept)  # the writer has not come to it yet
    assert find(client, created) == ()
    again.step(
        events.PersistFailed(again.now, Ticket(1), Ticket(again.core.state.next_ticket - 1), 5, "disk")
    )
    assert find(client, created)[0].object == created.reference.object


def test_a_group_whose_removal_is_refused_counts_its_members_exactly() -> None:
    """Members are read and forgotten while the removal is under way; the group's account has them all."""
    node, rows = lazy_node()
    client = node.session()
    home = client.groups[0]
    group = client.ask(messages.Created, messages.Create(ObjectType.GROUP, (home,)))
    settle(node)
    account = node.core.state.objects[ObjectId(group.reference.object)].account
    assert account is not None
    every = [make(client, b"x" * number, (home, group.reference.ref)) for number in range(6)]
    assert account.used[:2] == [6, sum(range(6))]
    kept = dict(node.stored)
    first = node.core.state.next_ticket
    client.ask(messages.Done, messages.Delete(group.reference.ref))
    node.stored.update(kept)  # the writer has not come to it yet
    assert node.core.state.dormant_count == len(every) - IDLE
    for created in every:
        (reference,) = find(client, created)
        client.ask(messages.Done, messages.Delete(reference.ref, int(Flag.HANDLE_ONLY)))
    assert rows.reads
    last = Ticket(node.core.state.next_ticket - 1)
    node.step(events.PersistFailed(node.now, Ticket(first), last, 5, "disk"))
    again = node.core.state.objects[ObjectId(group.reference.object)]
    assert again.account is account
    invariants.check(node.core.state)
    settle(node)
    for _ in range(IDLE):
        make(client)  # those that were read meanwhile leave the memory
    assert account.used[:2] == [6, sum(range(6))]
    invariants.check(node.core.state)


def test_what_a_task_with_limits_has_made_stays_counted_with_it() -> None:
    """Objects of an account with a limit of its own stay in memory, because only there they count."""
    node, _ = lazy_node()
    client = node.session()
    account = node.core.state.tasks[client.task].account
    account.bounds[0] = account.bounds[1] = 1 << 40
    for _ in range(IDLE + 3):
        make(client)
    assert node.core.state.dormant_count == 0


@pytest.mark.parametrize("seed", range(8))
def test_a_core_that_forgets_answers_as_one_that_does_not(seed: int) -> None:
    """Random calls get the same answers whether objects leave the memory or not."""
    assert _history(seed, lazy=True) == _history(seed, lazy=False)


def _history(seed: int, *, lazy: bool) -> list[object]:
    rng = Random(seed)  # noqa: S311 - a seed must give the same calls
    node = lazy_node(seed)[0] if lazy else Node(seed)
    client = node.session()
    known: list[messages.Created] = []
    told: list[object] = []
    for _ in range(150):
        step = rng.random()
        if step < 0.35 or not known:
            known.append(make(client, rng.randbytes(rng.randrange(40))))
            continue
        created = rng.choice(known)
        references = find(client, created)
        told.append([(listed.object, listed.size, listed.v_w) for listed in references])
        for reference in references:
            if step < 0.55:
                data = rng.randbytes(rng.randrange(40))
                client.ask(messages.Committed, messages.WriteOnce(reference.ref, data))
            held = step >= 0.75 and rng.random() < 0.3
            if not held:
                flags = 0 if 0.55 <= step < 0.6 else int(Flag.HANDLE_ONLY)
                client.ask(messages.Done, messages.Delete(reference.ref, flags))
        if rng.random() < 0.7:
            settle(node)
    told.append(sorted(node.stored.items()))
    told.append(node.core.state.principals[OWNER].used)
    return told

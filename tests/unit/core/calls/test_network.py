"""Network streams in the core: the right to make them, opening, failing, and who gets which connection."""

from __future__ import annotations

import pytest

from dios.core import effects, events
from dios.core.model.names import special_name
from dios.errors import Code
from dios.ids import ObjectId, Principal
from dios.wire import messages
from dios.wire.types import Flag, Mode, NameKind, ObjectType, Permission, RequestEnd, Resource
from tests.support.core.harness import Client, Node

PLACE = "127.0.0.1:80"
TYPES = (ObjectType.TCP_STREAM, ObjectType.TCP_ACCEPT_STREAM, ObjectType.UDP_STREAM)


def creation(kind: ObjectType = ObjectType.TCP_ACCEPT_STREAM, address: str = PLACE) -> messages.Create:
    """The call."""
    return messages.Create(kind, name_kind=NameKind.ANONYMOUS, address=address)


class Network:
    """A session that holds the right, and what it has opened."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.owner = node.session()
        (self.right,) = self.owner.lookup(special_name(3))

    def begin(self, client: Client | None = None, kind: ObjectType = TYPES[1]) -> tuple[int, ObjectId]:
        """A creation that waits, and its object."""
        seq = (client or self.owner).send(creation(kind))
        (asked,) = [effect for effect in self.node.outcome.after if isinstance(effect, effects.OpenNetwork)]
        assert (asked.kind, asked.address) == (kind, PLACE)
        return seq, asked.object

    def open(self, client: Client | None = None, kind: ObjectType = TYPES[1]) -> messages.Reference:
        """A network stream that is open."""
        seq, target = self.begin(client, kind)
        assert (client or self.owner).answer(seq) is None
        self.node.step(events.NetworkOpened(self.node.now, target, "127.0.0.1:4711"))
        created = (client or self.owner).answer(seq)
        assert isinstance(created, messages.Created)
        return created.reference

    def arrives(self, acceptor: messages.Reference, number: int) -> None:
        """A peer connects."""
        peer = f"10.0.0.{number}:99"
        self.node.step(events.ConnectionArrived(self.node.now, ObjectId(acceptor.object), number, peer))

    def adopted(self) -> list[int]:
        """The connections that the last step handed out."""
        return [
            effect.number for effect in self.node.outcome.after if isinstance(effect, effects.AdoptConnection)
        ]

    def closed(self) -> list[int]:
        """The objects whose sockets the last step let go."""
        return [
            effect.object for effect in self.node.outcome.after if isinstance(effect, effects.CloseNetwork)
        ]


@pytest.fixture
def network(node: Node) -> Network:
    """A session of the node's own user with its right."""
    return Network(node)


# -- the right --------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", TYPES)
def test_the_right_is_needed(node: Node, kind: ObjectType) -> None:
    """Without a reference to the NETWORK object no network stream is made, and no other word of it told."""
    assert node.session().refused(creation(kind)) == Code.EPERM


def test_only_the_nodes_user_resolves_the_network(node: Node) -> None:
    """The special name is empty for other users, and for tasks, even those of the node's own user."""
    name = special_name(3)
    owner = node.session()
    assert [reference.type for reference in owner.lookup(name)] == [ObjectType.NETWORK]
    assert node.session(Principal("uid:0")).lookup(name)
    assert node.session(Principal("uid:77")).lookup(name) == ()
    assert owner.run().lookup(name) == ()


def test_a_task_that_is_handed_the_right_has_it(network: Network) -> None:
    """The right is handed on like any reference; without the permission to write it is none."""
    for permissions, fine in ((int(Permission.WRITE), True), (int(Permission.READ), False)):
        task = network.owner.run(inputs=(messages.Handed(network.right.ref, permissions),))
        if fine:
            assert network.open(task).address == "127.0.0.1:4711"
        else:
            assert task.refused(creation()) == Code.EPERM


def test_the_right_can_be_taken_back(network: Network) -> None:
    """Who has lost its reference to the NETWORK object makes no more streams; those it has go on."""
    task = network.owner.run(inputs=(messages.Handed(network.right.ref, int(Permission.ALL)),))
    stream = network.open(task)
    network.owner.ask(messages.Done, messages.Retire(network.right.ref))
    assert task.refused(creation()) == Code.EPERM
    assert task.stat(stream.ref).object == stream.object


def test_the_network_is_no_file(network: Network) -> None:
    """The NETWORK object has no bytes, is not created, not written and not destroyed."""
    ref = network.right.ref
    assert network.owner.ask(effects.AnswerBytes, messages.ReadOnce(ref)).data == b""
    assert network.owner.refused(messages.WriteOnce(ref, b"x")) == Code.EINVAL
    assert network.owner.refused(messages.Create(ObjectType.NETWORK)) == Code.EINVAL
    assert network.owner.refused(messages.Delete(ref, int(Flag.DESTROY))) == Code.EINVAL


NO_ADDRESSES = [
    "",
    "80",
    ":80",
    "localhost",
    "localhost:",
    "h:65536",
    "h:x",
    "h:-1",
    "a\0b:1",
    f"h:{'9' * 4000}",
]


@pytest.mark.parametrize("address", NO_ADDRESSES, ids=lambda address: address[:10])
def test_nonsense_is_no_address(network: Network, address: str) -> None:
    """An address has a host and a port; anything else is refused before a socket is thought of."""
    assert network.owner.refused(creation(address=address)) == Code.EINVAL


def test_only_network_streams_have_an_address(node: Node) -> None:
    """An address makes sense to no other type."""
    assert node.session().refused(messages.Create(ObjectType.SHMEM_BLOB, address=PLACE)) == Code.EINVAL


def test_no_vector_waits_for_a_socket(network: Network) -> None:
    """A network stream waits until it is open, so it is not created in a vector."""
    answer = network.owner.ask(effects.AnswerVector, messages.Vector((creation(),)))
    (part,) = answer.parts
    assert isinstance(part, effects.Answer)
    assert isinstance(part.result, messages.Failure)
    assert part.result.code == Code.EINVAL


# -- opening ------------------------------------------------------------------------------------------
def test_creation_answers_when_the_socket_is_open(network: Network) -> None:
    """The creator waits for its socket and learns its address; both are in the audit log."""
    network.open(kind=ObjectType.TCP_STREAM)
    (record,) = [effect for effect in network.node.outcome.after if isinstance(effect, effects.Audit)]
    assert (record.action, record.outcome, record.detail) == ("create", "ok", "TCP_STREAM 127.0.0.1:4711")


def test_creation_fails_with_its_socket(network: Network) -> None:
    """What could not be opened leaves neither object nor reference, and its reason is told and audited."""
    before = len(network.node.core.state.objects)
    seq, target = network.begin()
    network.node.step(events.NetworkFailed(network.node.now, target, int(Code.EBUSY), "in use"))
    failure = network.owner.answer(seq)
    assert isinstance(failure, messages.Failure)
    assert (failure.code, failure.message) == (Code.EBUSY, "in use")
    assert len(network.node.core.state.objects) == before
    assert network.closed() == [target]
    assert any(
        isinstance(effect, effects.Audit) and effect.outcome == "failed"
        for effect in network.node.outcome.after
    )


def test_creation_given_up_leaves_nothing(network: Network) -> None:
    """A cancelled creation closes its socket, for nobody would know of its reference."""
    seq, target = network.begin()
    network.owner.ask(messages.Done, messages.Cancel(seq))
    assert network.closed() == [target]
    network.node.step(events.NetworkOpened(network.node.now, target, PLACE))
    assert target not in network.node.core.state.objects


def test_end_of_the_creator_closes_the_socket(network: Network) -> None:
    """A task that ends while it waits leaves no socket behind, nor does one that has its stream."""
    task = network.owner.run(inputs=(messages.Handed(network.right.ref, int(Permission.WRITE)),))
    stream = network.open(task)
    _, target = network.begin(task)
    network.node.end(task.task)
    assert set(network.closed()) == {stream.object, target}


def test_rings_are_counted(network: Network) -> None:
    """A connection is counted with the bytes of its two rings, an acceptor with none."""
    account = network.node.core.state.account_of(Principal("uid:1000"))
    before = account.used[Resource.VOLATILE_BYTES]
    network.open()
    assert account.used[Resource.VOLATILE_BYTES] == before
    call = messages.Create(ObjectType.TCP_STREAM, name_kind=NameKind.ANONYMOUS, address=PLACE, size=8192)
    network.owner.send(call)
    assert account.used[Resource.VOLATILE_BYTES] == before + 2 * 8192


# -- connections ----------------------------------------------------------------------------------------
def test_each_connection_has_one_reader(network: Network) -> None:
    """Several tasks that share an acceptor get each its own connections, who waited longest first."""
    acceptor = network.open()
    workers = [
        network.owner.run(inputs=(messages.Handed(acceptor.ref, int(Permission.READ)),)) for _ in range(2)
    ]
    waits = [worker.send(messages.ReadOnce(worker.welcome.inputs[0].ref)) for worker in workers]
    for number, (worker, seq) in enumerate(zip(workers, waits, strict=True), 1):
        network.arrives(acceptor, number)
        assert network.adopted() == [number]
        got = worker.answer(seq)
        assert isinstance(got, messages.References)
        (connection,) = got.references
        assert (connection.type, connection.address) == (ObjectType.TCP_STREAM, f"10.0.0.{number}:99")
        assert connection.permissions == int(Permission.ALL)
    network.arrives(acceptor, 3)
    assert network.adopted() == []


def test_an_acceptor_is_ready_when_a_connection_waits(network: Network) -> None:
    """Select finds an acceptor with a connection, which stays for whoever reads it."""
    acceptor = network.open()
    asked = network.owner.send(messages.Select((acceptor.ref,), Mode.READ))
    assert network.owner.answer(asked) is None
    read = messages.ReadOnce(acceptor.ref, flags=int(Flag.NON_BLOCKING))
    assert network.owner.refused(read) == Code.EAGAIN
    network.arrives(acceptor, 5)
    assert network.owner.answer(asked) == messages.Selected(0)
    assert network.owner.stat(acceptor.ref).size == 1
    network.owner.ask(messages.References, read)
    assert network.owner.stat(acceptor.ref).size == 0


def test_a_reader_without_room_leaves_the_connection(network: Network) -> None:
    """Whose account is full is refused, and the connection is there for the next reader."""
    acceptor = network.open()
    full = network.owner.run(
        inputs=(messages.Handed(acceptor.ref, int(Permission.READ)),), limits=messages.Limits(bytes=4096)
    )
    network.arrives(acceptor, 8)
    assert full.refused(messages.ReadOnce(full.welcome.inputs[0].ref)) == Code.EDQUOT
    network.owner.ask(messages.References, messages.ReadOnce(acceptor.ref))
    assert network.adopted() == [8]


def test_a_connection_that_broke_is_no_good_end(network: Network) -> None:
    """The page says that the object is gone before the rings end, so that no reader is taken in."""
    stream = network.open(kind=ObjectType.TCP_STREAM)
    network.owner.ask(messages.Attached, messages.Attach(stream.ref, Mode.READ))
    reset = events.NetworkFailed(network.node.now, ObjectId(stream.object), int(Code.EHOSTUNREACH), "reset")
    after = network.node.step(reset).after
    published = next(
        place
        for place, effect in enumerate(after)
        if isinstance(effect, effects.PublishCounters) and effect.zombie
    )
    ended = [place for place, effect in enumerate(after) if isinstance(effect, effects.CloseStreamEnd)]
    assert ended
    assert published < min(ended)
    assert network.owner.refused(messages.Attach(stream.ref, Mode.WRITE)) == Code.ESTALE


def test_waiting_readers_learn_of_the_acceptors_end(network: Network) -> None:
    """Who waits for a connection of an acceptor that is destroyed is told, and what waits there is closed."""
    acceptor = network.open()
    waiting = network.owner.send(messages.ReadOnce(acceptor.ref))
    network.owner.ask(messages.Done, messages.Delete(acceptor.ref, int(Flag.DESTROY)))
    failure = network.owner.answer(waiting)
    assert isinstance(failure, messages.Failure)
    assert failure.code in {Code.ESTALE, Code.EINVAL}
    network.arrives(acceptor, 9)  # the host may be slower than the core


def test_both_directions_have_their_own_end(network: Network) -> None:
    """A connection's reading and writing end may be two tasks', and each is taken once."""
    stream = network.open(kind=ObjectType.TCP_STREAM)
    task = network.owner.run(inputs=(messages.Handed(stream.ref, int(Permission.WRITE)),))
    network.owner.ask(messages.Attached, messages.Attach(stream.ref, Mode.READ))
    given = task.welcome.inputs[0].ref
    task.ask(messages.Attached, messages.Attach(given, Mode.WRITE))
    assert network.owner.refused(messages.Attach(stream.ref, Mode.WRITE)) == Code.EBUSY
    network.node.end(task.task)
    ends = [effect for effect in network.node.outcome.after if isinstance(effect, effects.CloseStreamEnd)]
    assert [end.mode for end in ends] == [Mode.WRITE]


def test_dropped_datagrams_are_counted(network: Network) -> None:
    """Datagrams that found no room are told of on the page, where failed writes are."""
    stream = network.open(kind=ObjectType.UDP_STREAM)
    network.node.step(events.DatagramsDropped(network.node.now, ObjectId(stream.object), 3))
    (published,) = [
        effect for effect in network.node.outcome.after if isinstance(effect, effects.PublishCounters)
    ]
    assert published.dirty == 3


# -- networks that are limited to origins -----------------------------------------------------------------
def limited(network: Network, *origins: str) -> messages.Reference:
    """A NETWORK object of the session."""
    call = messages.Create(ObjectType.NETWORK, name_kind=NameKind.ANONYMOUS, address=" ".join(origins))
    return network.owner.ask(messages.Created, call).reference


def test_a_limited_network_permits_connections_to_its_origins(network: Network) -> None:
    """Its holder connects to these, with the rule for addresses, and to nothing else."""
    right = limited(network, "http://127.0.0.1", "https://intranet=10.0.0.5")
    task = network.owner.run(inputs=(messages.Handed(right.ref, int(Permission.WRITE)),))
    ref = task.welcome.inputs[0].ref
    for address in ("127.0.0.1:80", "10.0.0.5:443"):
        task.send(messages.Create(TYPES[0], name_kind=NameKind.ANONYMOUS, address=address, network=ref))
        (asked,) = [
            effect for effect in network.node.outcome.after if isinstance(effect, effects.OpenNetwork)
        ]
        assert (asked.address, asked.origin) == (address, True)
    for kind, address in (
        (TYPES[0], "127.0.0.1:443"),
        (TYPES[0], "intranet:443"),
        (TYPES[0], "127.0.0.2:80"),
        (TYPES[1], "127.0.0.1:80"),
        (TYPES[2], "127.0.0.1:80"),
    ):
        call = messages.Create(kind, name_kind=NameKind.ANONYMOUS, address=address, network=ref)
        assert task.refused(call) == Code.EPERM
    assert task.refused(creation(TYPES[0], "127.0.0.1:80")) == Code.EPERM, (
        "it is no right to the whole network"
    )


def test_a_limited_network_is_made_by_who_has_the_right(network: Network) -> None:
    """Neither a task without it, nor the holder of a limited one; and it is limited to origins."""
    right = limited(network, "http://127.0.0.1")
    task = network.owner.run(inputs=(messages.Handed(right.ref, int(Permission.ALL)),))
    call = messages.Create(ObjectType.NETWORK, name_kind=NameKind.ANONYMOUS, address="http://127.0.0.1")
    assert task.refused(call) == Code.EPERM
    for address in ("", "127.0.0.1:80", "http://a.b  http://c.d", "http://a.b http://a.b"):
        wrong = messages.Create(ObjectType.NETWORK, name_kind=NameKind.ANONYMOUS, address=address)
        assert network.owner.refused(wrong) == Code.EINVAL


def test_a_task_with_a_limited_network_is_a_gateway(network: Network) -> None:
    """Its process shares no secret with those of other tasks: it holds the keys of the granted origins."""
    program = network.owner.create(name_kind=NameKind.ANONYMOUS, data=b"pass").reference.ref
    right = limited(network, "http://127.0.0.1")
    for inputs, is_gateway in (((), False), ((messages.Handed(right.ref, Permission.WRITE),), True)):
        network.owner.send(messages.Run(program, inputs=inputs))
        (spawn,) = [effect for effect in network.node.outcome.after if isinstance(effect, effects.Spawn)]
        assert spawn.is_gateway is is_gateway


def test_a_limited_network_can_be_taken_back(network: Network) -> None:
    """Without its reference a task connects to nothing, and with one to read neither."""
    right = limited(network, "http://127.0.0.1")
    task = network.owner.run(
        inputs=(
            messages.Handed(right.ref, int(Permission.WRITE)),
            messages.Handed(right.ref, int(Permission.READ)),
        )
    )
    write, read = (reference.ref for reference in task.welcome.inputs)
    call = messages.Create(TYPES[0], name_kind=NameKind.ANONYMOUS, address=PLACE, network=read)
    assert task.refused(call) == Code.EPERM
    assert task.refused(messages.RecordRequest(read, 0, "GET", RequestEnd.ANSWERED)) == Code.EPERM
    network.owner.ask(messages.Done, messages.Retire(right.ref))
    call = messages.Create(TYPES[0], name_kind=NameKind.ANONYMOUS, address=PLACE, network=write)
    assert task.refused(call) == Code.EBADF


def test_the_record_of_a_connection_names_its_origins(network: Network) -> None:
    """It is made before anything is sent, so that a request of a gateway that was ended is in the log."""
    right = limited(network, "http://a.b=10.0.0.5", "http://c.d=10.0.0.5", "http://e.f=10.0.0.6")
    call = messages.Create(TYPES[0], name_kind=NameKind.ANONYMOUS, address="10.0.0.5:80", network=right.ref)
    for arrived, outcome in (
        (lambda target: events.NetworkOpened(network.node.now, target, "10.0.0.5:80"), "ok"),
        (lambda target: events.NetworkFailed(network.node.now, target, int(Code.EPERM), "no"), "failed"),
    ):
        network.owner.send(call)
        (asked,) = [
            effect for effect in network.node.outcome.after if isinstance(effect, effects.OpenNetwork)
        ]
        network.node.step(arrived(asked.object))
        (record,) = [effect for effect in network.node.outcome.after if isinstance(effect, effects.Audit)]
        assert (record.action, record.outcome) == ("create", outcome)
        assert record.detail.endswith(" for http://a.b or http://c.d")


def test_requests_are_recorded_in_the_nodes_own_words(network: Network) -> None:
    """A record has method, origin, end and numbers; a refusal has no numbers, so that equal ones merge."""
    right = limited(network, "http://127.0.0.1", "https://intranet=10.0.0.5")

    def recorded(call: messages.RecordRequest) -> tuple[str, str, str]:
        network.owner.ask(messages.Done, call)
        (audit,) = [effect for effect in network.node.outcome.after if isinstance(effect, effects.Audit)]
        return audit.action, audit.outcome, audit.detail

    assert recorded(messages.RecordRequest(right.ref, 1, "GET", RequestEnd.ANSWERED, 404, 5, 7)) == (
        "request",
        "ok",
        "GET https://intranet 404, 5 bytes sent, 7 received",
    )
    assert recorded(messages.RecordRequest(right.ref, 0, "PUT", RequestEnd.TIMED_OUT, 0, 5)) == (
        "request",
        "failed",
        "PUT http://127.0.0.1 timed_out, 5 bytes sent, 0 received",
    )
    assert recorded(messages.RecordRequest(right.ref, 0, "PUT", RequestEnd.REFUSED, 0, 5, 9)) == (
        "request",
        "denied",
        "PUT http://127.0.0.1",
    )
    for wrong in (
        messages.RecordRequest(right.ref, 2, "GET", RequestEnd.ANSWERED),
        messages.RecordRequest(right.ref, 0, "GET x", RequestEnd.ANSWERED),
        messages.RecordRequest(right.ref, 0, "", RequestEnd.ANSWERED),
        messages.RecordRequest(network.owner.welcome.home.ref, 0, "GET", RequestEnd.ANSWERED),  # type: ignore[union-attr]
    ):
        assert network.owner.refused(wrong) in {Code.EINVAL, Code.EPERM}

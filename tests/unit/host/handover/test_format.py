from __future__ import annotations

import msgspec
import pytest
from blake3 import blake3
from msgspec.structs import replace

from dios.errors import DamagedError
from dios.host.handover import format as form
from dios.host.handover.format import Handover, HostState
from dios.wire.types import Brand, Mode, ObjectType

CHANNEL = form.Channel(9, b"\x00\x00", (b"call",), (form.Unsent(b"rest", (10,)),), 1)
SAMPLE = HostState(
    version="0.2.0",
    began_ns=1,
    continuations=2,
    clock_offset=-3,
    settings={"mode": "'liberal'"},
    pid_file=3,
    listener=4,
    steps=form.Steps(5, 6, 7, 8),
    attempt=1,
    owners=(form.Owner(1, "uid:7", 0),),
    memories=(form.Memory(11, 4096, frozen=True, raw=False, stored=False, contested=False, writers=-1),),
    contents=(form.Content(1, form.Bytes(0)), form.Content(2, form.Bytes(-1, b"small"))),
    buffers=(form.OpenBuffer(1, form.Bytes(0), 0, 16, shadow=False, mapped=True),),
    payloads=(form.KeptPayload(4, form.Bytes(-1, b"kept")),),
    pages=(form.Page(1, 12, -1, 5, (form.BoundSlot(0, 1),)),),
    counters=(form.Counters(1, 7, 0, (16, 1, 2, 0, 0, 0), zombie=False, direct=True),),
    consoles=(form.Console(1, b"line\n", 5, 0, followed=True),),
    ended_consoles=(form.EndedConsole(8, "uid:7", 8, 5),),
    rings=(form.Ring(3, None, 65536, 13, 14, 15, -1, (Mode.READ,)),),
    closed_ends=(form.ClosedEnds(3, (Mode.WRITE,)),),
    sockets=(
        form.Socket(
            5, ObjectType.TCP_STREAM, "10.0.0.3:80", 21, (form.Pump(Mode.READ, 22, 3, 4),), reported=True
        ),
        form.Socket(6, ObjectType.TCP_ACCEPT_STREAM, "0.0.0.0:80", 23, accepted=(form.Accepted(7, 24),)),
    ),
    next_accepted=8,
    zygotes=(
        form.Zygote(
            100,
            16,
            Brand.PURE,
            templates=False,
            children=(
                form.Child(
                    *(1, Brand.PURE, 101, 17, -1, 18, 1 << 20, 0, 64),
                    (form.Group("/sys/fs/cgroup/dios-1-1/task-1", 2, ("memory", "pids")),),
                    kill_asked=False,
                    over_memory=False,
                ),
            ),
        ),
    ),
    tasks=(form.Task(1, "uid:7", 1, 0, 1, CHANNEL, killed=False, suspended=True),),
    sessions=(form.Session(2, 7, 102, CHANNEL, closing=False),),
    newcomers=(form.Newcomer(7, 103, CHANNEL),),
    port=form.Port(5, (19,)),
    lingering=(20,),
    peers=(form.Peer(77, "n2", "10.0.0.2:7400", kept=True),),
    remote_tasks=(form.RemoteTask(9, 77),),
)
FROZEN = "cbfa21ef7eae06a9ee0bd456d8157c0f9645c69767ab1fdf689ea1d9c35c47fb"
"""The digest of the sample's bytes: version 1 of the format never changes, and a new version has its own."""


FROZEN_STREAMS = "130467bcd6c6588e6174070bca2fb95a6eae2fac72251ffa729ede618e03cb0c"
FROZEN_PRINCIPALS = "7ca4080a58817671bcf29fdd37c241af1ed488ee1b5fc82f92ccfcf60ed51197"
FROZEN_STILL_SLOTS = "9e4e053d25899ce697728f721e4e28d4aa49eb168cfc8be28ab75eb1e59807d3"


def test_version_1_is_frozen() -> None:
    """The sample has the bytes that it always had, and comes back equal."""
    data = form.encode(Handover(b"core", SAMPLE))
    assert blake3(data).hexdigest() == FROZEN
    assert form.decode(data) == Handover(b"core", SAMPLE)


def test_streams_between_nodes_are_further_fields() -> None:
    """A state with them is frozen, too; one without them is that of the first programs."""
    streams = replace(
        SAMPLE,
        fetched_rings=(form.Ring(30, Mode.READ, 65536, 31, 32, 33, -1, ()),),
        between=(form.PeerStream(77, 5, True, 30, Mode.READ, False, 9, "uid:7", 2, 34, 1, 2, b"on its way"),),
    )
    data = form.encode(Handover(b"core", streams))
    assert blake3(data).hexdigest() == FROZEN_STREAMS
    assert form.decode(data) == Handover(b"core", streams)
    assert b"between" not in form.encode(Handover(b"core", SAMPLE))


def test_principals_of_sockets_are_a_further_field() -> None:
    """A state with them is frozen, too, and one without them has the bytes of the first programs."""
    owned = replace(
        SAMPLE, sockets=tuple(replace(described, principal="uid:7") for described in SAMPLE.sockets)
    )
    data = form.encode(Handover(b"core", owned))
    assert blake3(data).hexdigest() == FROZEN_PRINCIPALS
    assert form.decode(data) == Handover(b"core", owned)


def test_slots_without_counters_are_a_further_field() -> None:
    """A state with them is frozen, too, and one without them has the bytes of the first programs."""
    pages = (replace(SAMPLE.pages[0], bound=(form.BoundSlot(0, 1, still=True),)),)
    data = form.encode(Handover(b"core", replace(SAMPLE, pages=pages)))
    assert blake3(data).hexdigest() == FROZEN_STILL_SLOTS
    assert form.decode(data) == Handover(b"core", replace(SAMPLE, pages=pages))


def test_damaged_and_foreign_bytes_are_refused() -> None:
    """Each single changed byte, a cut, and another version are errors that name the remedy."""
    data = form.encode(Handover(b"core", SAMPLE))
    for place in range(0, len(data), 7):
        changed = bytearray(data)
        changed[place] ^= 1
        with pytest.raises(DamagedError):
            form.decode(bytes(changed))
    for length in (0, 10, 40, len(data) - 1):
        with pytest.raises(DamagedError):
            form.decode(data[:length])
    with pytest.raises(DamagedError, match="Stop the node and start it again"):
        form.decode(data[:8] + (2).to_bytes(4, "big") + data[12:])


@pytest.mark.parametrize(
    "wrong",
    [
        replace(SAMPLE, listener=-1),
        replace(SAMPLE, listener=1 << 40),
        replace(SAMPLE, began_ns=-1),
        replace(SAMPLE, owners=(form.Owner(1, "n2", 0),)),
        replace(SAMPLE, contents=(form.Content(1, form.Bytes(-2)),)),
        replace(SAMPLE, rings=(form.Ring(3, None, 1 << 40, 13, 14, 15, -1, ()),)),
        replace(SAMPLE, peers=(form.Peer(77, "n" * 1000, "", kept=True),)),
    ],
)
def test_values_out_of_their_range_are_refused(wrong: HostState) -> None:
    """Bytes with a right checksum are checked like all others."""
    with pytest.raises(DamagedError):
        form.decode(form.encode(Handover(b"core", wrong)))


def test_unknown_fields_are_refused() -> None:
    """The state of a program with more parts is no state of this one."""
    fields = msgspec.to_builtins(form.Steps(1, 2, 3, 4)) | {"more": 5}
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(fields, form.Steps)

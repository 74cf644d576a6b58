"""Tests that a node of a cluster can work here: its identity, addresses, port, clock, and the other nodes.

``dios node ls`` is for a running cluster. Connections made by these tests are closed at once.
"""

from __future__ import annotations

import ctypes
import socket
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from dios import limits
from dios.client.ops.cluster import Member
from dios.client.sync.node import connect
from dios.errors import DiosError
from dios.lib.kept.promises import Promises
from dios.node import daemon, seeds
from dios.node.addresses import is_loopback, is_unspecified, split_address
from dios.node.devices import find_devices
from dios.node.doctor.finding import DoctorFinding, DoctorTest
from dios.node.settings import Settings, load
from dios.wire.addresses import join_address, listen_advice
from dios.wire.node_roles import NodeRight
from dios.wire.types import SecretState

_DIAL_SECONDS: Final = 1.0
_SEEDS_TRIED_MAX: Final = 8
_CHAIN_ROOM_LOW: Final = 2
_MEMBERS_OF_A_CLUSTER: Final = 2
_CLOCK_UNSYNCHRONISED: Final = 5
_TIMEX_BYTES: Final = 512
_PORT: Final = DoctorTest("port", "other nodes connect to it")


def examine_cluster(data: Path) -> list[DoctorFinding]:
    """Test what a node of a cluster in ``data`` needs; return nothing for other directories."""
    try:
        settings = load(data)
    except DiosError as error:
        return [DoctorTest("settings", "the settings of the node").missing(error.message, "correct them")]
    if not settings.listen and not settings.identity.exists():
        return []
    tests = [_identity(settings), _clock()]
    if settings.devices:
        tests.append(_devices(settings))
    if settings.listen:
        tests += [_port(settings), _address(settings)]
    else:
        advice = f'set listen in {settings.data / "node.toml"}, like "10.0.0.1:7400"'
        tests.append(_PORT.missing("it does not listen", advice))
    return tests + list(_others(settings)) + list(_known(settings))


def _known(settings: Settings) -> Iterator[DoctorFinding]:
    """Report what the running node knows of the others: their clocks, and schedulers without a lease."""
    if daemon.find(settings.socket) is None:
        return
    promised = 0
    try:
        with connect(str(settings.socket), groups=()) as node:
            members = node.nodes()
            with suppress(DiosError):  # a node that answers may know of no promises
                promised = max((promise.replicas for promise in Promises(node).known()), default=0)
    except DiosError:
        return  # other tests show why the node does not answer
    yield from judge_clocks(members)
    yield judge_schedulers(members)
    yield from judge_authorities(members)
    yield from judge_secret(members)
    yield from judge_keepers(members, promised)


def judge_secret(members: Iterable[Member]) -> Iterator[DoctorFinding]:
    """Report the nodes that do not have the present secret of the cluster, with advice if one answers."""
    members = list(members)
    if len(members) < _MEMBERS_OF_A_CLUSTER:
        return
    test = DoctorTest("secret", "removed nodes cannot seal groups and tokens")
    late = [member for member in members if member.secret is not SecretState.CURRENT]
    if not late:
        yield test.result("all nodes have the present one")
    elif late[0].here:
        detail = f"{late[0].name} has one that a removed node has as well"
        yield test.result(
            detail,
            "wait a minute; if that does not end it, see the logs of this node and of the authorities, which "
            "make the next one",
        )
    else:
        waiting = [member.name for member in late if member.secret is SecretState.WAITING]
        away = [member.name for member in late if member.secret is SecretState.UNKNOWN]
        words = [f"{', '.join(waiting)} lack the present one"] if waiting else []
        words += [f"{', '.join(away)} do not answer, and get it when they come back"] if away else []
        advice = "update nodes with an earlier release, or free space on their disks" if waiting else ""
        yield test.result("; ".join(words), advice)


def judge_keepers(members: Iterable[Member], promised: int) -> Iterator[DoctorFinding]:
    """Report if fewer nodes may keep replicas than the most that were promised; nothing if enough."""
    keepers = sum(member.keeps for member in members)
    if keepers < promised:
        yield DoctorTest("keepers", "nodes for the replicas that are promised").result(
            f"{promised} replicas are promised, and {keepers} nodes may keep some",
            "invite more with `dios-node invite --role keeper`, or promise fewer with `dios group set`",
        )


def judge_authorities(members: Iterable[Member]) -> Iterator[DoctorFinding]:
    """Report the authorities among the nodes, with advice for a cluster that has only one."""
    members = list(members)
    names = sorted(member.name for member in members if member.roles and member.may(NodeRight.SIGN))
    if not names or len(members) < _MEMBERS_OF_A_CLUSTER:
        return  # no authority was connected since the start of this node, which says nothing about them
    test = DoctorTest("authorities", "they admit nodes and renew certificates")
    advice = ""
    if len(names) == 1:
        advice = (
            f"if {names[0]} is lost, nobody renews the certificates: invite a second authority there with "
            "`dios-node invite --role authority`, or keep the key of the cluster's root (docs/clusters.md)"
        )
    yield test.result(", ".join(names), advice)


def judge_schedulers(members: Iterable[Member]) -> DoctorFinding:
    """Report the schedulers that have lost their lease on a node's queue, because they placed no run."""
    test = DoctorTest("schedulers", "a scheduler places the runs that wait")
    members = list(members)
    names = {member.node: member.name for member in members}
    barred = {
        member.name: [names.get(node, f"{node:016x}") for node in member.barred]
        for member in members
        if member.barred
    }
    if not barred:
        return test.result("none has lost its lease on a queue")
    detail = "; ".join(
        f"{name} has barred that of {', '.join(them)}" for name, them in sorted(barred.items())
    )
    advice = (
        "look at the log of the coordinator on that node (`dios logs coordinator`). If it is well, trust the "
        "node no longer and remove it: `dios node forget`"
    )
    return test.result(detail, advice)


def judge_clocks(members: Iterable[Member]) -> Iterator[DoctorFinding]:
    """Report the measured clocks, with advice for those that differ by more than CLOCK_SKEW_MS_MAX.

    A clock is blamed only if it differs by more than that for certain.
    """
    test = DoctorTest("clocks", "times shown to users agree, and the ends of certificates")
    measured = {
        member.name: (member.clock_offset_ns, member.clock_error_ns)
        for member in members
        if member.usable and member.clock_offset_ns is not None and member.clock_error_ns is not None
    }
    if not measured:
        return
    bound_ns = limits.CLOCK_SKEW_MS_MAX * 1_000_000
    wrong = {name: offset for name, (offset, error) in measured.items() if abs(offset) - error > bound_ns}
    if not wrong:
        most = max(abs(offset) + error for offset, error in measured.values())
        yield test.result(f"those of {len(measured)} other nodes are within {most / 1e6:.0f} ms")
        return
    detail = "; ".join(f"{name} is {offset / 1e9:+.1f} s ahead" for name, offset in sorted(wrong.items()))
    advice = "set the clocks with chrony or systemd-timesyncd, then restart these nodes, which read them once"
    if len(wrong) == len(measured) > 1:
        advice = "probably this node's own clock is wrong: set it, then restart the node"
    yield test.result(detail, advice)


def _devices(settings: Settings) -> DoctorFinding:
    test = DoctorTest("devices", "tasks get the devices that they ask for (--device gpu=1)")
    inventory = find_devices(settings.devices)
    counts = Counter(device.kind for device in inventory.devices)
    detail = ", ".join(f"{count} of the kind {kind}" for kind, count in sorted(counts.items())) or "none"
    if inventory.problems:
        detail += "; " + "; ".join(inventory.problems)
    advice = (
        "correct [devices] in the settings, or load the driver of the device" if inventory.problems else ""
    )
    return test.result(detail, advice)


def _identity(settings: Settings) -> DoctorFinding:
    test = DoctorTest("identity", "identifies the node in its cluster")
    # Imported late: certificates take a tenth of a second, which a node without a cluster need not spend.
    from dios.node.certificate_keeper import state_of  # noqa: PLC0415 - see above
    from dios.transport.identity import identity  # noqa: PLC0415 - the same

    try:
        own = identity.load(settings.data)
    except DiosError as error:
        return test.missing(error.message, "follow the message")
    except OSError as error:
        detail = f"{error.filename}: {error.strerror}"
        advice = "run this command as the user who runs the node"
        return test.missing(detail, advice)
    if own is None:
        advice = "run `dios-node init` to make a cluster, or `dios-node start --join` to join one"
        return test.result("none yet: the node accepts no other nodes", advice)
    room = limits.CHAIN_CERTIFICATES_MAX - len(own.chain)
    certificate = state_of(own)
    detail = (
        f"{own.name} of cluster {own.cluster.hex()[:16]}, {own.card.node_role.text}; its certificate "
        f"is valid {certificate.text}, and has {len(own.chain) - 1} others above it"
    )
    steps = [certificate.advice] if certificate.advice else []
    if settings.border and (why := own.card.why_not(NodeRight.BORDER)):
        steps.append(f"remove the setting `border`: {why}")
    if room <= _CHAIN_ROOM_LOW and own.card.may(NodeRight.SIGN):
        steps.append(
            f"admit new nodes elsewhere: below this node there is room for {room} more in a row. "
            "`dios-node invite` at a node that was in the cluster earlier"
        )
    return test.result(detail, "; ".join(steps))


def _clock() -> DoctorFinding:
    test = DoctorTest("clock", "ends of invitations and certificates, and the times shown to users")
    state = _clock_state()
    if state is None:
        return test.result("the system does not report if it is synchronised")
    if state == _CLOCK_UNSYNCHRONISED:
        advice = "let chrony, systemd-timesyncd or the hypervisor set the clock"
        return test.result("not synchronised, according to the kernel", advice)
    return test.result("synchronised by the network or the hypervisor")


def _clock_state() -> int | None:
    """Return the kernel's state of its clock, or None if it cannot be read."""
    try:
        ask = ctypes.CDLL(None, use_errno=True).adjtimex
    except AttributeError:
        return None
    # With an all-zero structure the call reads everything and changes nothing.
    state = int(ask(ctypes.create_string_buffer(_TIMEX_BYTES)))
    return None if state < 0 else state


def _port(settings: Settings) -> DoctorFinding:
    if daemon.find(settings.socket) is not None:
        if _dial(_from_here(settings.listen)):
            advice = "see the node's log: the node runs but does not listen"
            return _PORT.missing(f"nobody answers at {settings.listen}", advice)
        return _PORT.result(f"{settings.listen}, used by the running node")
    host, port = split_address(settings.listen)
    try:
        family, kind, _, _, place = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError as error:
        return _PORT.missing(f"{settings.listen}: {error.strerror}", listen_advice(error))
    return _PORT.result(f"{settings.listen} is free")


def _from_here(listen: str) -> str:
    """Return the address at which this machine itself reaches the listener."""
    host, port = split_address(listen)
    return join_address("localhost" if is_unspecified(host) else host, port)


def _address(settings: Settings) -> DoctorFinding:
    test = DoctorTest("address", "the address that other nodes receive")
    host, port = split_address(settings.address)
    try:
        addresses = {str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    except OSError as error:
        advice = "use an address, or a name that every machine of the cluster can resolve"
        return test.missing(f"{host}: {error.strerror}", advice)
    resolved = ", ".join(sorted(addresses))
    detail = settings.address if host in addresses else f"{settings.address}, which is {resolved}"
    if all(is_loopback(address) for address in addresses):
        advice = "nodes on other machines cannot reach it: advertise an address of this machine"
        return test.result(f"{detail}, this machine only", advice)
    return test.result(detail)


def _others(settings: Settings) -> Iterator[DoctorFinding]:
    known = seeds.read(settings.data)[:_SEEDS_TRIED_MAX]
    if not known:
        return
    test = DoctorTest("other nodes", "one of them is enough to find the cluster again")
    refusals = {address: why for address in known if (why := _dial(address))}
    detail = f"{len(known) - len(refusals)} of {len(known)} known addresses answer"
    if not refusals:
        yield test.result(detail)
        return
    told = "; ".join(f"{address}: {why}" for address, why in refusals.items())
    advice = "start those nodes, or open the port in the firewalls of the machines"
    # A node starts even if its cluster is down, and waits for it.
    yield test.result(f"{detail} ({told})", advice)


def _dial(address: str) -> str:
    """Return the reason why an address cannot be reached, or "" if it can."""
    try:
        with socket.create_connection(split_address(address), timeout=_DIAL_SECONDS):
            return ""
    except TimeoutError:
        return f"no answer within {_DIAL_SECONDS:g} s"
    except OSError as error:
        return error.strerror or str(error)

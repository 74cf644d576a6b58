"""Hostile programs that want out by a network, each in a pure task of a running node: what stops them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dios
from tests.support.node.running_node import wait_until
from tests.support.security.escape import Attempt, Cage, check_plainly, name_of, open_cage, row

FAMILIES = (
    row("every_family_of_streams", "EPERM", "no stream of any of the kernel's families is opened", "did"),
    row("every_family_of_datagrams", "EPERM", "no datagram socket of any family", "did"),
    row("every_family_of_raw_packets", "EPERM", "no raw socket of any family", "did"),
    row("every_family_of_ordered_packets", "EPERM", "no ordered packets of any family", "did"),
    row("tcp", "EPERM", "a listener of this machine is not reached", "did"),
    row("tcp_abroad", "EPERM", "nor one elsewhere"),
    row("udp", "EPERM", "no datagram leaves", "did"),
    row("udp_over_ipv6", "EPERM", "nor over IPv6", "did|EADDRNOTAVAIL|EAFNOSUPPORT"),
    row("listen", "EPERM", "nobody can be waited for", "did"),
    row("lookup_host", "gaierror:-2 gaierror:-3 gaierror:-9", "the library finds no name", "did"),
    row(
        "lookup_abroad",
        "gaierror:-2 gaierror:-3",
        "no name of elsewhere is asked for, which would carry loot",
    ),
    row("ask_name_server", "EPERM", "no name server is asked directly", "did"),
    row("echo_request", "EPERM", "no echo is requested with a raw socket"),
    row("echo_request_without_right", "EPERM", "nor with the kind open to all"),
    row("packets", "EPERM", "no packet of others is seen"),
    row("routes", "EPERM", "netlink does not tell of interfaces", "did"),
    row("kernel_events", "EPERM", "nor of devices", "did"),
    row("audit_messages", "EPERM", "nor takes records for the machine's audit", "did|EPROTONOSUPPORT"),
    row("host_of_virtual_machine", "EPERM", "vsock, which no network namespace holds, is refused"),
    row("kernel_ciphers", "EPERM", "the kernel's ciphers, much attacked, are refused", "did|EAFNOSUPPORT"),
)
UNIX = (
    row("unix_path", "EPERM", "a listener with a path is not reached", "did"),
    row("unix_abstract", "EPERM", "nor one without", "did"),
    row("node_as_a_person", "EPERM", "the node's own socket for people is not reached"),
    row("listen_abstract", "EPERM", "no socket without a path is made, to be met at", "did"),
    row("datagram_pair", "EPERM", "no pair of datagrams, which could be sent elsewhere", "did"),
    row("ordered_pair", "EPERM", "nor of ordered packets", "did"),
    row("transparent_pair", "EPERM", "a pair of another family is refused"),
    row("connect_pair_elsewhere", "EPERM", "a pair of its own is not connected elsewhere", "EISCONN"),
    row("send_from_pair_elsewhere", "EPERM", "nor does it send elsewhere", "EISCONN|EOPNOTSUPP"),
    row("message_from_pair_elsewhere", "EPERM", "also by a message", "EISCONN|EOPNOTSUPP"),
)
OWN = (
    row("connect_own", "EPERM", "its own socket is not connected elsewhere"),
    row("bind_own", "EPERM", "nor given a name at which others find it"),
    row("listen_on_own", "EPERM", "nor made a listener"),
    row("accept_from_own", "EPERM", "nor accepts it anybody"),
    row("send_elsewhere_from_own", "EPERM", "it sends to nobody but the node"),
    row("message_elsewhere_from_own", "EPERM", "also by a message"),
    row("pose_as_root", "EPERM", "it does not pose as root"),
    row("hold_of_the_daemon", "EPERM", "it gets no descriptor of the daemon's process"),
    row("who_is_the_daemon", "EPERM", "it does not learn which process and user the daemon is"),
    row("groups_of_the_daemon", "EPERM", "nor in which groups that user is"),
    row("ask_for_credentials", "EPERM", "the socket's options are not its to set"),
    row("filter_own", "EPERM", "no packet filter, which is a program in the kernel, is attached"),
    row("raise_own_buffer", "EPERM", "nor is a buffer forced above the machine's limit"),
    row("take_a_descriptor", "EAGAIN nothing", "no descriptor waits there for whoever looks"),
    row("inherited_descriptors", "nothing", "it inherited none but its four"),
)
ALL = (*FAMILIES, *UNIX, *OWN)
HANG_UP = (
    row("give_descriptors", "EPERM", "no descriptors are sent to the node"),
    row("urgent_byte", "did:1 EOPNOTSUPP EPERM", "an urgent byte does not stop the node"),
)


@pytest.fixture(scope="module")
def cage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cage]:
    """One node, neighbour and set of witnesses for all attempts."""
    with open_cage(tmp_path_factory.mktemp("network"), "escape_network") as opened:
        yield opened


@pytest.mark.parametrize("attempt", ALL, ids=name_of)
def test_escape(cage: Cage, attempt: Attempt) -> None:
    """Each attempt is answered as its row says, nothing arrives outside, and the neighbour is served."""
    cage.refuses(attempt)


@pytest.mark.parametrize("attempt", HANG_UP, ids=name_of)
def test_nothing_but_frames_reaches_the_node(cage: Cage, attempt: Attempt) -> None:
    """What is no frame costs the task its session at most; the daemon keeps no descriptor of it."""
    cage.run("inherited_descriptors")
    held = cage.running.descriptors()
    said, status = cage.run(attempt.name)
    assert not said or said[0] in attempt.answers, (attempt.claim, said)
    assert status.cause in {dios.Cause.PROTOCOL, dios.Cause.EXITED}, (attempt.claim, status)
    cage.neighbour.is_answered()
    cage.witness.unharmed()
    wait_until(lambda: cage.running.descriptors() <= held, "the daemon holds what it held before")


def test_the_attempts_are_real(cage: Cage) -> None:
    """An ordinary program of the same user gets through with those attempts that can be made outside."""
    check_plainly(cage, ALL)

"""What measures network functions: machines in namespaces, a sender, a sink, and workers in memory."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import numpy as np
import pytest

from dios.errors import InvalidError
from dios.sprayer.functions.synthetic import Synthetic
from dios.sprayer.runtime.worker_kernels import RECEIVED
from dios.sprayer.runtime.workers import Workers
from labs.papers.sprayer.lab import measure, quic, tcp
from labs.papers.sprayer.lab.frames import ABOVE, Frames
from labs.papers.sprayer.lab.measure import MeasurementSetting
from labs.papers.sprayer.lab.namespaces import NotHereError
from labs.papers.sprayer.lab.traffic import FrameSender, FrameSink, frames_to_right
from labs.papers.sprayer.lab.veth_pairs import CABLE, INSIDE, LEFT_LINK, RIGHT_LINK, VethPairs
from tests.support.sprayer.frames import read

pytestmark = pytest.mark.long

SEED = 5
CYCLES = 20_000
SECONDS = 0.1
WAIT_S = 10.0
ALL = 0x0003


@pytest.fixture
def cables() -> Iterator[VethPairs]:
    """Two machines, and a place between them."""
    try:
        made_ones = VethPairs()
    except NotHereError as error:
        pytest.skip(str(error))
    with made_ones:
        yield made_ones


def listening(cables: VethPairs) -> socket.socket:
    """What hears all that comes to the function's inside."""
    with cables.middle.entered():
        heard = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    heard.settimeout(WAIT_S)
    with cables.middle.entered():
        heard.bind((INSIDE, ALL))
    return heard


# QUIC -------------------------------------------------------------------------------------------------


def test_a_quic_connection_is_sprayed_and_survives_the_migration_of_its_client(cables: VethPairs) -> None:
    """A real client changes its port twice: the stream ends whole at one server, found by connection id."""
    if quic.missing():
        pytest.skip(quic.missing())
    measurement = quic.through_balancer(cables, MeasurementSetting(steer="spray"), 1 << 18, 2)
    assert measurement.whole
    assert (measurement.moved, measurement.counters["migrated"]) == (2, 2)
    assert measurement.regular > (1 << 18) // 1400


# Frames -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [60, 61, 1514])
def test_frames_have_right_checksums_and_ends_of_their_flow(length: int) -> None:
    """Each is well formed, of the flow that its place says, and numbered in it."""
    frames = Frames(4, length, SEED, target=RIGHT_LINK, source=LEFT_LINK, count=64)
    ends = [read(message.tobytes()[ABOVE:]) for message in frames.messages]
    assert all(end.sums_right and len(end.payload) == length - 54 for end in ends)
    assert len({(end.source, end.source_port) for end in ends}) == 4
    assert all(ends[at].source_port == ends[at % 4].source_port for at in range(len(ends)))
    opening = [read(message.tobytes()[ABOVE:]) for message in frames.opening]
    assert all(opener.sums_right and opener.flags == 2 for opener in opening)
    assert [opener.source_port for opener in opening] == [end.source_port for end in ends[:4]]


def test_the_same_seed_draws_the_same_frames_and_checksums_are_spread() -> None:
    """Another seed draws others; about half of the checksums are even."""
    first, same, other = (
        Frames(1, 64, seed, target=RIGHT_LINK, source=LEFT_LINK) for seed in (SEED, SEED, SEED + 1)
    )
    assert np.array_equal(first.messages, same.messages)
    assert not np.array_equal(first.messages, other.messages)
    assert abs(float((first.checksums % 2).mean()) - 0.5) < 0.05, SEED


def test_frames_that_cannot_be_are_refused() -> None:
    """No flow, no payload, more than a packet holds."""
    for flows, length, burst in ((0, 64, 1), (1, 54, 1), (1, 1514, 64)):
        with pytest.raises(InvalidError, match="choose"):
            Frames(flows, length, SEED, target=RIGHT_LINK, source=LEFT_LINK, burst=burst)


# Between namespaces -----------------------------------------------------------------------------------


def test_a_socket_that_was_opened_inside_belongs_to_that_machine(cables: VethPairs) -> None:
    """There it knows the cable's end, here nothing of that name comes and goes."""
    with cables.left.entered():
        inside = {name for _, name in socket.if_nameindex()}
    assert inside == {"lo", CABLE}
    assert CABLE not in {name for _, name in socket.if_nameindex()}


def test_the_kernel_cuts_a_burst_into_frames_with_checksums_of_their_own(cables: VethPairs) -> None:
    """Numbers go on, payloads are ours, all sums are right, and not all the same."""
    frames = frames_to_right(2, 64, SEED, burst=8)
    with listening(cables) as heard, FrameSender(cables.left, frames) as sender:
        sender.open_flows()
        for message in frames.messages[:4]:
            sender.give(message)
        received: list[bytes] = []
        while len(received) < 34:
            text = heard.recv(2048)
            if text[12:14] == b"\x08\x00":
                received.append(text)
    cut = received[2:]
    assert all(read(text).sums_right and len(text) == 64 for text in cut)
    numbers = [int.from_bytes(text[38:42], "big") // frames.payload for text in cut]
    assert numbers == [*range(8), *range(8), *range(8, 16), *range(8, 16)]
    assert b"".join(text[54:] for text in cut[:8]) == frames.messages[0].tobytes()[ABOVE + 54 :]
    assert len({text[50:52] for text in cut}) > 16


def test_the_sink_counts_frames_that_come_after_later_ones(cables: VethPairs) -> None:
    """Two that changed places, and one that came four too late."""
    frames = frames_to_right(1, 64, SEED)
    with (
        cables.engine(1, "rss", secret=SEED) as engine,
        Workers(None, engine),
        FrameSender(cables.left, frames) as sender,
        FrameSink(cables, sender) as sink,
    ):
        for number in (0, 1, 3, 2, 4, 6, 7, 8, 9, 5, 10):
            sender.give(frames.messages[number])
        sink.wait_arrived(11, WAIT_S)
        assert (sink.arrived, sink.late, sink.late_by_three) == (11, 2, 1)


@pytest.mark.extended
def test_one_flow_keeps_every_core_busy_sprayed_and_one_core_by_its_hash(cables: VethPairs) -> None:
    """Whatever the rates are: nothing is lost, and who received what is as it should be."""
    for steer, cores in (("spray", 2), ("rss", 1)):
        measurement = measure.forwarding(
            cables, Synthetic(CYCLES), MeasurementSetting(steer=steer, seconds=SECONDS, seed=SEED)
        )
        assert measurement.frames_s > 0
        assert measurement.lost == 0
        busy = [rate for rate in measurement.per_core if rate > 0.2 * sum(measurement.per_core)]
        assert len(busy) == cores, (steer, measurement)


def test_flows_are_found_on_the_cores_that_they_come_to(cables: VethPairs) -> None:
    """By their hash each on one, and sprayed on none alone."""
    frames = frames_to_right(16, 64, SEED, burst=16)
    for steer, known in (("rss", {0, 1}), ("spray", {-1})):
        with (
            cables.engine(2, steer, secret=SEED) as engine,
            FrameSender(cables.left, frames) as sender,
        ):
            workers = Workers(None, engine, seed=SEED)
            with workers:
                assert set(sender.cores_of(workers.counters[:, RECEIVED])) == known


def test_delays_are_told_of_frames_that_came(cables: VethPairs) -> None:
    """The middle is above nothing and not above the 99th percentile; one core keeps the order."""
    setting = MeasurementSetting(cores=1, steer="rss", seconds=SECONDS, seed=SEED)
    measurement = measure.delay(cables, None, setting, 2000)
    assert 0 < measurement.median <= measurement.p99
    assert measurement.late == 0


def test_a_real_tcp_is_measured_or_its_absence_told(cables: VethPairs) -> None:
    """What two connections carry, and how fairly; without iperf3, what installs it."""
    setting = MeasurementSetting(cores=2, flows=2, seconds=1, seed=SEED)
    if tcp.missing():
        with pytest.raises(NotHereError, match="apt install iperf3"):
            tcp.throughput(cables, None, setting, settle_s=0)
        return
    measurement = tcp.throughput(cables, None, setting, settle_s=0)
    assert measurement.bits_s > 0
    assert 0.5 <= measurement.jain <= 1.0
    assert 0 <= measurement.again < 1


# In memory --------------------------------------------------------------------------------------------


def test_in_memory_one_flow_is_on_all_cores_sprayed_and_on_one_by_its_hash() -> None:
    """Each core that has frames works, and no other."""
    for steer, cores in (("spray", 2), ("rss", 1)):
        measurement = measure.in_memory(
            Synthetic(CYCLES), MeasurementSetting(steer=steer, seconds=SECONDS, seed=SEED)
        )
        assert sum(rate > 0 for rate in measurement.per_core) == cores
        assert measurement.frames_s == pytest.approx(sum(measurement.per_core))
        assert measurement.per_cpu_s > 0

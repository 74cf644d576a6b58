"""Attackers on the socket of a real node: fifty thousand frames here, a million in ``make fuzz``."""

from __future__ import annotations

from pathlib import Path

import pytest

from dios.core.replay import Replay
from dios.wire import messages
from dios.wire.codec import PROTOCOL_VERSION, FrameSplitter, decode_reply, encode_request
from dios.wire.messages import Created, References
from dios.wire.types import ObjectType
from tests.fuzz.campaign import Campaign, Finding, can_be_another, fuzzed_node
from tests.fuzz.replay import replay
from tests.fuzz.story import Entry, Story, Translation, read_story
from tests.support.node.raw_client import RawClient

SEED = 20_260
FRAMES = 50_000
RECORDED_FRAMES = 1_000


@pytest.mark.extended
def test_fifty_thousand_frames_hurt_nobody(tmp_path: Path) -> None:
    """Whatever is sent, the neighbour is served rightly, the daemon's figures are flat, its logs in order."""
    foreign = can_be_another()
    with (
        fuzzed_node(foreign=foreign) as (node, path),
        Campaign(node, path, SEED, foreign=foreign) as work,
    ):
        try:
            result = work.run(FRAMES)
        except Finding:
            work.story.write(tmp_path / "finding.json", seed=SEED)
            raise
    assert result.frames >= FRAMES
    assert result.neighbour_calls > 500
    assert result.connections > 200
    assert result.audit_records > 1_000


@pytest.mark.extended
def test_a_recorded_campaign_replays_and_keeps_every_invariant(tmp_path: Path) -> None:
    """Each step of a node under attack replays with the same outcome, and leaves its tables right."""
    foreign = can_be_another()
    record = tmp_path / "record"
    with fuzzed_node(foreign=foreign, record=record) as (node, path):
        with Campaign(node, path, SEED + 1, foreign=foreign, bursts=2) as work:
            work.run(RECORDED_FRAMES)
        node.stop()
    steps = list(Replay(record.read_bytes()).steps())
    assert not any(step.difference for step in steps)
    assert len(steps) > RECORDED_FRAMES // 2


def test_a_campaign_notices_a_daemon_that_dies() -> None:
    """A daemon that ends under attack is a finding: the campaign does not go on against nobody."""
    with (
        fuzzed_node(foreign=False) as (node, path),
        Campaign(node, path, SEED, foreign=False) as work,
    ):
        node.kill()
        with pytest.raises(Finding):
            work.run(100)


def test_a_story_replays_with_the_ids_of_another_node(tmp_path: Path) -> None:
    """Frames that name a reference and a name are granted on a fresh node, which has other ids."""
    calls: list[messages.AnyCall] = [
        messages.Hello(PROTOCOL_VERSION),
        messages.Create(ObjectType.SHMEM_BLOB, data=b"kept"),
    ]
    story = Story()
    with fuzzed_node(foreign=False) as (_, path), RawClient(path, hello=False) as client:
        story.add("open", 1)
        got = b""
        for number, call in enumerate(calls, 1):
            frame = encode_request(number, call)
            client.sock.sendall(frame)
            story.add("send", 1, frame)
            got = client.sock.recv(65_536)
            story.add("got", 1, got)
        (body,) = FrameSplitter().feed(got)
        created = decode_reply(body).result
        assert isinstance(created, Created)
        story.add("send", 1, encode_request(3, messages.Stat(created.reference.ref)))
    story.write(tmp_path / "story.json")
    entries = read_story(tmp_path / "story.json")
    with fuzzed_node(foreign=False) as (node, path):
        assert not replay(entries, node, path, foreign=False)
        assert granted(entries, path)


def granted(entries: list[Entry], path: Path) -> bool:
    """Whether the last frame of a story, translated, is granted to a session that sent the others."""
    translation = Translation()
    with RawClient(path, hello=False) as client:
        recorded = got = b""
        for entry in entries:
            if entry.action == "send":
                client.sock.sendall(translation.apply(entry.data))
                got += client.sock.recv(65_536)
            elif entry.action == "got":
                recorded += entry.data
                translation.learn(recorded, got)
    last = decode_reply(FrameSplitter().feed(got)[-1]).result
    return isinstance(last, References) and bool(last.references)

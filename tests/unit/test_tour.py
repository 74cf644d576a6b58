"""docs/tour.md stays true: each step names functions that its file defines."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

TOUR = (Path(__file__).resolve().parents[2] / "docs" / "tour.md").read_text()
STEPS = re.findall(r"^\d\. \*\*`([\w/]+)\.py`(.*?)(?=^\d\. |^And back)", TOUR, re.MULTILINE | re.DOTALL)


def test_the_tour_has_five_steps() -> None:
    """One call is followed through five files, and through five more to another node."""
    assert len(STEPS) == 10


@pytest.mark.parametrize(("path", "text"), STEPS, ids=[path for path, _ in STEPS])
def test_each_step_names_functions_of_its_file(path: str, text: str) -> None:
    """Every `name()` in a step is defined in the file that the step is about."""
    module = importlib.import_module(path.replace("/", "."))
    names = re.findall(r"`([\w.]+)\(\)`", text)
    assert names
    for name in names:
        member: object = module
        for part in name.split("."):
            member = getattr(member, part)
        assert callable(member)


def test_the_steps_follow_each_other_in_the_code() -> None:
    """Each file on the way names the next one, or the file between them that the step mentions."""
    root = Path(__file__).resolve().parents[2]
    links = [
        ("dios/client/sync/handles.py", "dios.client.ops.requests"),
        ("dios/host/loop/driver.py", "dios.core.events"),
        ("dios/core/calls/io_calls.py", "commit_write"),
        ("dios/core/calls/io_calls.py", "dios.core.model.io_requests"),
        ("dios/host/loop/persister.py", "dios.store.protocol"),
        ("dios/core/calls/dispatch.py", "forwarding.proxy_of"),
        ("dios/core/remote/forwarding.py", "requests.ask"),
        ("dios/core/remote/requests.py", "effects.Send("),
        ("dios/host/peers/effects.py", "self._links.send("),
        ("dios/transport/tcp/tls.py", "dios.transport.tcp.secured"),
        ("dios/host/peers/links.py", "dios.host.peers.receiving"),
        ("dios/core/remote/cluster_events.py", "serving.serve"),
        ("dios/core/remote/serving.py", "requests.is_new"),
        ("dios/host/peers/remote_answers.py", "dcp.PeerReply"),
    ]
    broken = [(path, word) for path, word in links if word not in (root / path).read_text()]
    assert not broken

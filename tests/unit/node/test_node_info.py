"""Questions about the node are answered without reading files, because a client may ask thousands of them."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from dios.host.confinement.mechanisms import Probe
from dios.installation import DISTRIBUTION
from dios.node import serve
from dios.node.fitness import NodeFitness
from dios.node.settings import load
from dios.wire.messages import Info


def test_the_version_of_the_package_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first answer reads it from the package's files, and the others do not."""
    read: list[str] = []

    def version(name: str) -> str:
        read.append(name)
        return "1.2.3"

    monkeypatch.setattr(importlib.metadata, "version", version)
    serve._release.cache_clear()
    try:
        settings = load(tmp_path, environ={})
        fitness = NodeFitness(Probe(), accept_weaker=False)
        empty = Info("", "", {}, {})
        answers = [serve._completed(empty, settings, fitness, (), None, {}, ()) for _ in range(3)]
    finally:
        serve._release.cache_clear()
    assert [answer.version for answer in answers] == ["1.2.3"] * 3
    assert read == [DISTRIBUTION]

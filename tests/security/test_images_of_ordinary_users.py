"""A node of an ordinary user has no images: its containers would have the user who owns its memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import dios
from dios.errors import NotSupportedError
from tests.support.layouts import busybox_layout
from tests.support.node.confinement import mechanisms_or_skip, passes_as_nobody
from tests.support.node.running_node import running_node


@pytest.mark.skipif(os.geteuid() == 0, reason="root may have images")
def test_a_node_of_an_ordinary_user_refuses_images(tmp_path: Path) -> None:
    """The owner has permitted them, and the error says what is missing. Pure sandboxes run."""
    mechanisms_or_skip()
    layout = busybox_layout(tmp_path / "tiny")
    with running_node(tmp_path / "data", container_runtime="any") as running:
        with pytest.raises(NotSupportedError, match=r"OCI runtime|a node of root"):
            dios.Sandbox(node=running.place, image=f"oci-layout:{layout}")
        with dios.Sandbox(node=running.place) as pure:
            assert pure.run("1").ok


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another")
def test_the_same_holds_for_a_daemon_without_privileges() -> None:
    """All of this file passes when an ordinary user runs the daemon."""
    passes_as_nobody(__file__)

"""A node whose disk was damaged: what does not match its digest is never served.

Not for: nodes killed under load (``tests/crash``).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dios.errors import Code
from dios.wire import messages
from dios.wire.messages import Created, Failure, References
from dios.wire.types import ObjectType
from tests.support.node.raw_client import LARGE, NodeProcess, RawClient, create, pattern, read, write


@pytest.mark.parametrize("harm", ["changed", "cut", "gone"])
def test_damage_is_reported_and_never_served(tmp_path: Path, harm: str) -> None:
    """A large value whose file was changed, cut or removed is refused by fingerprint; all else is served."""
    node = NodeProcess(tmp_path / "data", pool_size="0")
    with node.client() as client:
        blobs = [create(client, ObjectType.DURABLE_BLOB) for _ in range(2)]
        for number, blob in enumerate(blobs):
            write(client, blob.reference.ref, pattern(LARGE + number))
    assert node.stop() == 0
    (victim,) = [path for path in (tmp_path / "data" / "extents").rglob("*") if size_of(path) == LARGE]
    harm_file(victim, harm)
    node.start()
    try:
        with node.client() as client:
            first, second = (look_up(client, created) for created in blobs)
            for _ in range(2):
                refused = client.any(messages.AcquireRead(first.ref))
                assert isinstance(refused, Failure)
                assert refused.code == Code.EIO
                assert first.fingerprint in refused.message + refused.fingerprint
            assert read(client, second.ref) == pattern(LARGE + 1)
            client.ask(messages.Delete(first.ref), messages.Done)
    finally:
        node.stop()


def harm_file(victim: Path, harm: str) -> None:
    """Do to a stored file what a failing disk or a careless person does."""
    victim.chmod(0o600)
    if harm == "gone":
        victim.unlink()
        return
    with victim.open("r+b") as file:
        if harm == "cut":
            file.truncate(LARGE // 2)
        else:
            file.seek(LARGE // 2)
            file.write(b"\xff\x00\xff")


def size_of(path: Path) -> int:
    """Bytes of a file; nothing of a folder."""
    return path.stat().st_size if path.is_file() else -1


def look_up(client: RawClient, created: Created) -> messages.Reference:
    """A fresh reference to an object made in an earlier session."""
    assert created.name is not None
    return client.ask(messages.Lookup(created.name), References).references[0]

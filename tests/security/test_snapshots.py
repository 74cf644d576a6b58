"""Attacks by the changed files of sandboxes: of a session that lists them, and of a member of the group."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import dios
from dios.errors import DamagedError, DiosError, InvalidError, TooLargeError
from dios.lib.environments.archives import EnvironmentArchive
from dios.lib.environments.environments import brought
from dios.lib.executor.errors import UntrustedResultError
from dios.lib.files.catalogue_places import KeyringCatalogue
from dios.lib.files.group_files import GroupFiles
from dios.lib.files.staging import StagedFiles
from dios.lib.sandbox.errors import SandboxEndedError
from dios.wire.environments import LENGTH, ArchiveDigest, digest_of, name_for
from dios.wire.images import MAGIC_OF_CHANGES
from tests.support.layouts import busybox_layout
from tests.support.node.command_user import Person
from tests.support.node.confinement import runtimes_or_skip
from tests.support.node.running_node import RunningNode, running_node

HOSTILE = {
    "leads out": [["..", 1, 0, 0, "", 0, []]],
    "leads out below": [["a", 1, 0, 0, "", 0, []], ["a/..", 2, 0, 0, "", 0, []]],
    "absolute": [["/etc/escaped", 2, 0, 0, "", 0, []]],
    "through a link": [["way", 3, 0, 0, "/etc", 0, []], ["way/escaped", 2, 0, 0, "", 0, []]],
    "through a removed file": [["way", 5, 0, 0, "", 0, []], ["way/escaped", 2, 0, 0, "", 0, []]],
    "a link out of the tree": [["linked", 4, 0, 0, "/etc/shadow", 0, []]],
    "a device": [["memory", 7, 0, 0, "", 0, []]],
    "a mark of another user": [["marked", 2, 0o4755, 0, "", 0, []]],
    "a capability": [["capable", 2, 0o755, 0, "", 0, [["security.capability", b"x"]]]],
    "an order to the kernel": [["a", 1, 0o755, 0, "", 0, [["user.overlay.redirect", b"/etc"]]]],
    "the place of the node's Python": [[".dios-python", 1, 0, 0, "", 0, []]],
    "the place of the kernel": [["proc", 3, 0, 0, "/tmp", 0, []]],
    "a size without bytes": [["large", 2, 0, 1 << 31, "", 0, []]],
    "sizes over the bound": [[f"large{number}", 2, 0, 1 << 32, "", 0, []] for number in range(3)],
}
"""Entries of changes that no node may follow."""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image of a busybox."""
    runtimes_or_skip()
    return f"oci-layout:{busybox_layout(tmp_path_factory.mktemp('layout') / 'tiny')}:tiny"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """One node for the tests of this module."""
    runtimes_or_skip()
    with running_node(tmp_path_factory.mktemp("node") / "data", container_runtime="any") as running:
        yield running


@pytest.fixture(scope="module")
def box(node: RunningNode, image: str) -> Iterator[dios.Sandbox]:
    """One sandbox for the tests that leave it as it was, or reset it."""
    with dios.Sandbox(node=node.place, image=image) as sandbox:
        yield sandbox


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_session_sends_no_other_files(box: dios.Sandbox, name: str) -> None:
    """The list is validated before a byte of a file is written, and the session has ended."""
    body = msgspec.msgpack.encode(("0" * 40, HOSTILE[name]))
    box.run(
        "import dios.lib.sandbox.changes as changes\n"
        f"changes.send_changes = lambda send: send({LENGTH.pack(len(body)) + body!r})"
    )
    with pytest.raises((SandboxEndedError, DiosError), match=r"image|manifest|fewer"):
        box.fork()
    box.reset()
    assert not Path("/etc/escaped").exists()


@pytest.mark.parametrize("code", ["lambda send: send(b'x' * 100_000)", "lambda send: None"])
def test_a_session_that_sends_something_else_makes_no_snapshot(box: dios.Sandbox, code: str) -> None:
    """Bytes that are no list, or none at all."""
    box.run(f"import dios.lib.sandbox.changes as changes\nchanges.send_changes = {code}")
    with pytest.raises(DiosError, match="files"):
        box.fork()
    box.reset()


def test_files_that_nobody_asked_for_end_the_session(box: dios.Sandbox) -> None:
    """The caller has no room for them."""
    code = (
        "import gc\nfrom dios.lib.sandbox.session import _Session\n"
        "next(o for o in gc.get_objects() if type(o) is _Session).send(5, b'x')"
    )
    assert box.run(code).error.ended  # type: ignore[union-attr]  # it has one
    box.reset()


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_changes_are_refused_by_the_node(
    node: RunningNode, box: dios.Sandbox, tmp_path: Path, name: str
) -> None:
    """Also from a caller that validates nothing: nothing is written, and no link followed."""
    with dios.connect(node.place) as control:
        base = digest_of(box._image_name)
        body = msgspec.msgpack.encode((base, HOSTILE[name]))
        whole = MAGIC_OF_CHANGES + LENGTH.pack(len(body)) + body
        digest = ArchiveDigest()
        digest.add(whole)
        (tmp_path / "archive").write_bytes(whole)
        before = sorted((node.data / "environments").glob("*/*"))
        with pytest.raises(InvalidError):
            brought(
                control, EnvironmentArchive(name_for(digest.text), tmp_path / "archive"), ("",), "changes"
            )
        assert sorted((node.data / "environments").glob("*/*")) == before
    assert not Path("/etc/escaped").exists()


def test_a_piece_that_a_member_has_replaced_is_refused(
    node: RunningNode, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot is what its digests say: other bytes of the same length are none of it."""
    person = Person(tmp_path)
    person.environment["DIOS_NODE"] = node.place
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / ".config"))
    person.types("dios group create tries")
    with dios.Sandbox(node=node.place, image=image) as own:
        own.files.write("/own", b"x" * 5_000)
        snapshot = own.snapshot("dios://tries/own")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with dios.connect(node.place) as control:
        keyring = dios.Keyring.load()
        group = control.group(bytes(keyring.groups["tries"]))
        assert group is not None
        files = GroupFiles(control, group, KeyringCatalogue(control, keyring, "tries", group))
        (piece,) = (row for row in files.entries() if row.size == 5_000)
        staged = StagedFiles(files)
        staged.add_bytes(piece.file, b"y" * 5_000)
        staged.publish()
    with pytest.raises(DamagedError, match="another digest"):
        dios.Sandbox(node=node.place, snapshot=snapshot)


def test_a_hostile_session_fills_no_disk_by_a_download(box: dios.Sandbox, tmp_path: Path) -> None:
    """A folder in itself without end, and a name that leads out."""
    row = "{'name': %r, 'kind': %r, 'size': 1, 'mode': 0o4777}"
    box.run(
        "import dios.lib.sandbox.session as session\n"
        f"session._changed = lambda _: [{row % ('again', 'folder')}]"
    )
    with pytest.raises(TooLargeError, match="too deep"):
        box.files.download("/", tmp_path / "deep")
    box.run(f"session._changed = lambda _: [{row % ('../escaped', 'file')}]")
    with pytest.raises(UntrustedResultError, match="with the name"):
        box.files.download("/", tmp_path / "out")
    assert not (tmp_path / "escaped").exists()
    box.reset()


def test_the_changed_files_are_read_only_at_their_second_place(box: dios.Sandbox) -> None:
    """They are those of this sandbox alone, and the mount cannot be changed."""
    box.files.write("/own", b"x")
    assert box.files.read("/.dios-changes/own") == b"x"
    code = """
import os
outcomes = []
for act in (lambda: open('/.dios-changes/own', 'w'), lambda: os.remove('/.dios-changes/own'),
            lambda: os.chmod('/.dios-changes/own', 0o777), lambda: os.mkdir('/.dios-changes/new')):
    try:
        act()
        outcomes.append(0)
    except OSError as error:
        outcomes.append(error.errno)
print(set(outcomes))
"""
    assert box.run(code).stdout == "{30}\n"
    assert box.exec("mount", "-o", "remount,bind,rw", "/.dios-changes").exit_code != 0
    assert box.files.read("/own") == b"x"

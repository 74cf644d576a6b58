"""Archives of images: what is in a manifest, and its bytes."""

from __future__ import annotations

import msgspec
import pytest

from dios import limits
from dios.errors import InvalidError
from dios.wire.images import (
    ChangeEntry,
    ChangeManifest,
    EntryKind,
    ImageEntry,
    ImageManifest,
    ImageSettings,
    decode_changes,
    decode_image,
    encode_image,
)

MANIFEST = ImageManifest(
    "x86_64",
    ImageSettings(("PATH=/bin",), "/work"),
    (
        ImageEntry("bin", EntryKind.FOLDER, 0o755),
        ImageEntry("bin/tool", EntryKind.FILE, 0o755, 3),
        ImageEntry("bin/sh", EntryKind.SYMLINK, 0, 0, "tool"),
        ImageEntry("bin/other", EntryKind.HARD_LINK, 0, 0, "bin/tool"),
    ),
)
FROZEN = (
    "93a67838365f36349291a9504154483d2f62696ea52f776f726b9495a362696e01cd01ed00a095a862696e2f746f6f6c"
    "02cd01ed03a095a662696e2f7368030000a4746f6f6c95a962696e2f6f74686572040000a862696e2f746f6f6c"
)


def entries(*rows: tuple[object, ...]) -> bytes:
    """The bytes of a manifest with these entries."""
    return msgspec.msgpack.encode(("x86_64", ((), "/"), rows))


def test_the_bytes_of_a_manifest_never_change() -> None:
    """They are those that were frozen."""
    assert encode_image(MANIFEST).hex() == FROZEN
    assert decode_image(encode_image(MANIFEST)) == MANIFEST
    assert MANIFEST.file_bytes() == 3
    assert MANIFEST.disk_bytes() == 4096 * 7


@pytest.mark.parametrize(
    ("reason", "rows"),
    [
        ("no valid manifest", [("", 1)]),
        ("is no path", [("a", 1), ("a/..", 1)]),
        ("is no path", [("/", 1)]),
        ("is no path", [(".", 1)]),
        ("name of over 255", [("a" * 256, 1)]),
        ("name of over 255", [("a", 1), ("a/" + "é" * 128, 2)]),
        ("is in no folder", [("/etc/passwd", 2)]),
        ("is in no folder", [("a/b", 2)]),
        ("is in no folder", [("a", 3, 0, 0, "/etc"), ("a/b", 2)]),
        ("is in no folder", [("a", 2), ("a/b", 2)]),
        ("comes twice", [("a", 2), ("a", 2)]),
        ("comes twice", [("a", 3, 0, 0, "/etc"), ("a", 1), ("a/passwd", 2)]),
        ("place of the node", [(".dios-python", 1)]),
        ("place of the kernel", [("proc", 3, 0, 0, "/tmp")]),
        ("place of the kernel", [("dev", 2)]),
        ("place of the node, and no folder", [("inputs", 2)]),
        ("place of the node, and no folder", [("outputs", 3, 0, 0, "/tmp")]),
        ("link to no file", [("a", 4, 0, 0, "b")]),
        ("link to no file", [("b", 3, 0, 0, "/etc/shadow"), ("a", 4, 0, 0, "b")]),
        ("link to no file", [("b", 1), ("a", 4, 0, 0, "b")]),
        ("without a target", [("a", 3)]),
        ("has bytes", [("a", 1, 0, 5)]),
        ("no valid manifest", [("a", 7)]),
        ("changes another image", [("a", 5)]),
        ("changes another image", [("a", 6)]),
        ("place of the node", [(".dios-changes", 2)]),
        ("no valid manifest", [("a", 2, 0o4755)]),
        ("no valid manifest", [("a", 2, 0, -1)]),
        ("no valid manifest", [("a", 2, 0, 0, "", "more")]),
        ("over", [(f"a{number}", 2, 0, limits.ENVIRONMENT_BYTES_MAX) for number in range(2)]),
    ],
)
def test_an_entry_that_leads_out_or_is_over_a_bound_is_refused(
    reason: str, rows: list[tuple[object, ...]]
) -> None:
    """No path leads through a link or to a place of the node, and no mark of another user is kept."""
    defaults = ("", 0, 0, 0, "")
    whole = [(*row, *defaults[len(row) :]) for row in rows]
    with pytest.raises(InvalidError, match=reason):
        decode_image(entries(*whole))


@pytest.mark.parametrize(
    "settings",
    [
        (("NAME",), "/"),
        (("=x",), "/"),
        (("==x",), "/"),
        (("A=\0",), "/"),
        ((), "work"),
        ((), "/a\0"),
        (("A=" + "x" * 9000,), "/"),
    ],
)
def test_settings_without_a_name_or_a_place_are_refused(settings: tuple[object, ...]) -> None:
    """Variables have a name, and all of them a bound; a working directory is absolute."""
    with pytest.raises(InvalidError):
        decode_image(msgspec.msgpack.encode(("x86_64", settings, ())))


def test_what_a_node_refuses_is_not_encoded() -> None:
    """A path over its bound, which no type of Python checks."""
    entry = ImageEntry("a" * (limits.ENVIRONMENT_PATH_CHARS_MAX + 1), EntryKind.FOLDER)
    with pytest.raises(InvalidError, match="no valid manifest"):
        encode_image(ImageManifest("x86_64", ImageSettings(), (entry,)))


def test_a_tree_that_is_too_deep_is_refused() -> None:
    """Each folder is there, and the last one is over the bound."""
    rows = [("/".join("a" * depth), 1, 0, 0, "") for depth in range(1, limits.IMAGE_DEPTH_MAX + 2)]
    with pytest.raises(InvalidError, match="is no path"):
        decode_image(entries(*rows))
    decode_image(entries(*rows[:-1]))


BASE = "0123456789" * 4
CHANGES = ChangeManifest(
    BASE,
    (
        ChangeEntry("bin", EntryKind.FOLDER, 0o1777, modified_ns=5),
        ChangeEntry("bin/tool", EntryKind.FILE, 0o755, 3, "", 6, (("user.mark", b"x"),)),
        ChangeEntry("bin/gone", EntryKind.REMOVED),
        ChangeEntry("bin/own", EntryKind.REPLACED_FOLDER, 0o700),
    ),
)
FROZEN_CHANGES = (
    "92d92830313233343536373839303132333435363738393031323334353637383930313233343536373839"
    "9497a362696e01cd03ff00a0059097a862696e2f746f6f6c02cd01ed03a0069192a9757365722e6d61726bc40178"
    "97a862696e2f676f6e65050000a0009097a762696e2f6f776e06cd01c000a00090"
)


def test_the_bytes_of_changes_never_change() -> None:
    """They are those that were frozen."""
    assert encode_image(CHANGES).hex() == FROZEN_CHANGES
    assert decode_changes(encode_image(CHANGES)) == CHANGES
    assert CHANGES.disk_bytes() == 4096 * 7


@pytest.mark.parametrize(
    ("reason", "rows"),
    [
        ("no valid manifest", [("a", 7)]),
        ("no valid manifest", [("a", 2, 0o4755)]),
        ("no valid manifest", [("a", 2, 0, 0, "", -1)]),
        ("no valid manifest", [("a", 2, 0, 0, "", 0, [("user.a", b"x" * 4097)])]),
        ("no valid manifest", [("a", 2, 0, 0, "", 0, [("user.a", b"")] * 17)]),
        ("none of a user", [("a", 2, 0, 0, "", 0, [("security.capability", b"")])]),
        ("none of a user", [("a", 1, 0, 0, "", 0, [("user.overlay.redirect", b"/etc")])]),
        ("zero byte", [("a", 2, 0, 0, "", 0, [("user.a\0", b"")])]),
        ("no file or folder", [("a", 3, 0, 0, "b", 0, [("user.a", b"")])]),
        ("is no path", [("..", 5)]),
        ("is in no folder", [("a/b", 5)]),
        ("is in no folder", [("a", 3, 0, 0, "/etc"), ("a/passwd", 5)]),
        ("is in no folder", [("a", 5), ("a/b", 2)]),
        ("place of the kernel", [("proc", 5)]),
        ("place of the kernel", [("dev", 6)]),
        ("place of the node", [("inputs", 5)]),
        ("place of the node", [(".dios-changes", 1)]),
        ("place of the node", [(".dios-python", 1)]),
        ("has bytes", [("a", 5, 0, 1)]),
        ("link to no file", [("a", 5), ("b", 4, 0, 0, "a")]),
    ],
)
def test_a_change_that_leads_out_or_gives_rights_is_refused(
    reason: str, rows: list[tuple[object, ...]]
) -> None:
    """The same rules as for images; and no attribute that a file system or the kernel would obey."""
    defaults = ("", 0, 0, 0, "", 0, ())
    whole = [(*row, *defaults[len(row) :]) for row in rows]
    with pytest.raises(InvalidError, match=reason):
        decode_changes(msgspec.msgpack.encode((BASE, whole)))


@pytest.mark.parametrize("base", ["", "../" * 13 + "a", BASE + "0", BASE.replace("1", "A")])
def test_the_image_of_changes_is_a_digest(base: str) -> None:
    """It becomes a part of a path."""
    with pytest.raises(InvalidError, match="no valid manifest"):
        decode_changes(msgspec.msgpack.encode((base, ())))

"""Random steps on ``dios://`` and on a local folder, through fsspec: the same answers and the same files."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

import dios
from tests.support.node.running_node import running_node

pytest.importorskip("fsspec", reason="fsspec is not installed: make setup")

import fsspec
from fsspec import AbstractFileSystem

pytestmark = pytest.mark.long

PLACES: Final = ("a", "b", "c", "d", "d/e", "d/f", "d/g", "d/g/h", "z z", "ä")
PATTERNS: Final = ("*", "**", "d/*", "*/*", "d/**", "[ab]", "?", "d/g*", "**/h", "nothing*", "*/", "d", "d/")
STEPS: Final = 40


class Side:
    """One of the two file systems. Its paths are shown without the folder of the test."""

    def __init__(self, system: AbstractFileSystem, root: str) -> None:
        self.system = system
        self.root = root.rstrip("/")

    def path(self, place: str) -> str:
        """Return the path of a place."""
        return f"{self.root}/{place}" if place else self.root

    def shown(self, value: object) -> object:
        """Return an answer of a file system in a form that does not depend on its folder."""
        if isinstance(value, str):
            text, root = value.strip("/"), self.root.strip("/")
            return text.removeprefix(root).strip("/") if text == root or text.startswith(f"{root}/") else text
        if isinstance(value, dict) and {"name", "type"} <= value.keys():
            size = value["size"] if value["type"] == "file" else None
            return self.shown(value["name"]), value["type"], size
        if isinstance(value, dict):
            return {self.shown(key): self.shown(part) for key, part in value.items()}
        if isinstance(value, list):
            return sorted(map(self.shown, value), key=repr)
        return tuple(map(self.shown, value)) if isinstance(value, tuple) else value

    def answer(self, step: Step) -> object:
        """Return the answer of a step, or a text for an error about a path."""
        try:
            return self.shown(step.run(self))
        except (OSError, ValueError):
            return "an error about the path"

    def _parent(self, path: str) -> None:
        """Make the directory of a file: others end with their last file."""
        self.system.makedirs(path.rpartition("/")[0], exist_ok=True)

    def written(self, path: str, mode: str, data: bytes) -> object:
        """Write a file, and return what the file says."""
        self._parent(path)
        if mode == "text":
            with self.system.open(path, "w", encoding="utf-8", newline="") as file:
                return file.write("ä\r\n" + data.decode())
        with self.system.open(path, mode) as file:
            return file.write(data), file.write(data)

    def piped(self, path: str, value: bytes, mode: str) -> None:
        """Write a file as a whole."""
        self._parent(path)
        self.system.pipe_file(path, value, mode=mode)

    def touched(self, path: str, *, truncate: bool) -> None:
        """Make an empty file."""
        self._parent(path)
        self.system.touch(path, truncate=truncate)

    def moved(self, old: str, new: str, *, recursive: bool) -> None:
        """Move a file or a directory."""
        self._parent(new)
        self.system.mv(old, new, recursive=recursive)

    def copied(self, old: str, new: str, *, recursive: bool) -> None:
        """Copy a file or a directory."""
        self._parent(new)
        self.system.cp(old, new, recursive=recursive)

    def in_bytes(self, path: str) -> object:
        """Read a file here and there."""
        with self.system.open(path, "rb") as file:
            places = (file.read(1), file.seek(2), file.readline(), file.seek(0, 2), file.tell())
            return (*places, file.seek(0), file.read())

    def in_text(self, path: str) -> object:
        """Read the lines of a file, with their ends as they are."""
        with self.system.open(path, "r", encoding="utf-8", newline="") as file:
            return tuple(file)

    def content(self) -> dict[str, object]:
        """Return all files with their bytes, and all directories."""
        infos = self.system.find(self.root, withdirs=True, detail=True)
        return {
            str(self.shown(path)): self.system.cat_file(path) if info["type"] == "file" else None
            for path, info in infos.items()
        }


class Step(NamedTuple):
    """A call of a file system, or of a method of ``Side``, with places in the folder of the test."""

    method: str
    places: tuple[str, ...]
    options: dict[str, object] = {}  # noqa: RUF012 - nobody changes it

    def run(self, side: Side) -> object:
        """Return the answer, in which a generator is a list."""
        owner = side if hasattr(side, self.method) else side.system
        answer: object = getattr(owner, self.method)(*map(side.path, self.places), **self.options)
        return list(answer) if isinstance(answer, Iterator) else answer


def drawn(draw: random.Random) -> Step:
    """Return a step. Three of five change something."""
    place, other, where = draw.choice(PLACES), draw.choice(PLACES), draw.choice(("", *PLACES))
    data = bytes(draw.choices(b"abc\n", k=draw.randrange(6)))
    first, last = draw.choice([(None, None), (0, 2), (1, None), (2, 9), (-1, None), (9, None), (0, -1)])
    depth, flag = draw.choice([None, 1, 2]), draw.choice([True, False])
    writes = [
        *(Step("written", (place,), {"mode": mode, "data": data}) for mode in ("wb", "ab", "xb", "text")),
        *(Step("piped", (place,), {"value": data, "mode": mode}) for mode in ("overwrite", "create")),
        Step("touched", (place,), {"truncate": flag}),
    ]
    reads = [
        Step("cat_file", (place,), {"start": first, "end": last}),
        Step("cat", (place,), {"recursive": flag}),
        Step("ls", (where,), {"detail": flag}),
        *(Step(method, (place,)) for method in ("info", "exists", "isfile", "isdir", "in_bytes", "in_text")),
        Step("find", (where,), {"maxdepth": depth, "withdirs": flag}),
        Step("walk", (where,), {"maxdepth": depth}),
        Step("glob", (draw.choice(PATTERNS),)),
        Step("expand_path", (place,), {"recursive": flag, "maxdepth": depth}),
        *(Step(method, (place,), {"size": 2}) for method in ("head", "tail")),
    ]
    if other in {place, place.rpartition("/")[0]}:
        # A folder refuses to copy a file to where it is, and here nothing happens.
        other = "elsewhere"
    changes = [
        Step("mkdir", (place,), {"create_parents": flag}),
        Step("makedirs", (place,), {"exist_ok": flag}),
        Step("rmdir", (place,)),
        Step("rm", (place,), {"recursive": flag}),
        Step("rm_file", (place,)),
        *(Step(method, (place, other), {"recursive": flag}) for method in ("moved", "copied")),
    ]
    return draw.choice(draw.choice([writes, writes, reads, reads, changes]))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[AbstractFileSystem, str]]:
    """The file system of a node, and the alias of a group on it."""
    with running_node(tmp_path_factory.mktemp("differential") / "data") as running:
        alias = f"differential-{running.running.pid}"
        with dios.connect(running.place, groups=()) as node:
            dios.Keyring.load().add(alias, dios.parse_name(dios.format_name(node.create_group().name or b"")))
        yield fsspec.filesystem("dios", node=running.place), alias


@pytest.mark.parametrize(
    "seed",
    [*range(12), *(pytest.param(seed, marks=pytest.mark.extended) for seed in range(12, 300))],
)
def test_files_are_those_of_a_folder(
    files: tuple[AbstractFileSystem, str], tmp_path: Path, seed: int
) -> None:
    """Each answer of a random play is that of a local folder, and so is what is there afterwards."""
    system, alias = files
    draw = random.Random(seed)  # noqa: S311 - a play that can be repeated
    ours = Side(system, f"{alias}/{seed}")
    folder = Side(fsspec.filesystem("file", auto_mkdir=True), str(tmp_path / "folder"))
    for side in (ours, folder):
        side.system.makedirs(side.root)
    for number in range(STEPS):
        step = drawn(draw)
        assert ours.answer(step) == folder.answer(step), (number, step)
        assert ours.content() == folder.content(), (number, step)

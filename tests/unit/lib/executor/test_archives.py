"""Local packages as archives: found and packed by a program, installed and imported by a worker."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.resources
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import pytest

from dios.client import task_main
from dios.errors import InvalidError
from dios.lib.executor import archives, local_modules
from dios.lib.executor.archives import Archive, install, pack
from dios.lib.executor.local_modules import LocalModules


def write(folder: Path, files: dict[str, str | bytes]) -> Path:
    """Write files; return the folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


@pytest.fixture(autouse=True)
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The private folder of a worker; what a test imports is forgotten at its end."""
    monkeypatch.setattr(archives, "_FOLDER", str(tmp_path / "private"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(archives, "_not_sent", archives._NotSent())
    present = set(sys.modules)
    yield tmp_path / "private"
    for name in set(sys.modules) - present:
        del sys.modules[name]


def test_files_arrive_as_they_are(tmp_path: Path) -> None:
    """Sources in any encoding and data travel as bytes; hidden, compiled and excluded files stay."""
    folder = write(
        tmp_path / "kit",
        {
            "__init__.py": "# -*- coding: latin-1 -*-\nNAME = 'Jörg'\n".encode("latin-1"),
            "data/table.csv": b"\x00\xff",
            "data/big.bin": b"x",
            "notes/a.txt": "a",
            "inner/__init__.py": "",
            ".dios-ignore": "# large files\n*.bin\nnotes/\n",
            ".secret": "x",
            "__pycache__/a.pyc": b"",
        },
    )
    (folder / ".#lock.py").symlink_to("somebody@nowhere")
    (folder / "nowhere.py").symlink_to(tmp_path / "absent")
    (folder / "inner" / "around").symlink_to(folder)
    os.mkfifo(folder / "pipe")
    archive = pack("kit", [folder])
    assert sorted(archive.files().contents) == [
        "kit/__init__.py",
        "kit/data/table.csv",
        "kit/inner/__init__.py",
    ]
    assert pack("kit", [folder]).digest == archive.digest
    install([archive])
    module = importlib.import_module("kit")
    assert module.NAME == "Jörg"
    assert importlib.resources.files(module).joinpath("data/table.csv").read_bytes() == b"\x00\xff"


def test_a_folder_that_is_no_package_sends_its_sources_alone(tmp_path: Path) -> None:
    """A namespace may be the folder of a whole project; packages in it travel with their data."""
    folder = write(
        tmp_path / "space", {"a.py": "", "video.bin": "x", "inner/__init__.py": "", "inner/deep/t.txt": "t"}
    )
    assert sorted(pack("space", [folder]).files().contents) == [
        "space/a.py",
        "space/inner/__init__.py",
        "space/inner/deep/t.txt",
    ]


def test_a_bound_is_an_error_that_names_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is dropped: files, their bytes, and the folders that are looked at are bounded."""
    folder = write(tmp_path / "wide", {"__init__.py": "", "a.py": "", "large.bin": b"x" * 5000})
    monkeypatch.setattr(archives, "LOCAL_PACKAGE_BYTES_MAX", 4096)
    with pytest.raises(InvalidError, match=r"wide cannot be sent.*large\.bin.*\.dios-ignore"):
        pack("wide", [folder])
    monkeypatch.setattr(archives, "LOCAL_PACKAGE_BYTES_MAX", 5000)
    assert len(pack("wide", [folder]).files().contents) == 3
    monkeypatch.setattr(archives, "LOCAL_PACKAGE_FILES_MAX", 2)
    with pytest.raises(InvalidError, match="3 files, over 2"):
        pack("wide", [folder])
    monkeypatch.setattr(archives, "_VISITED_MAX", 2)
    with pytest.raises(InvalidError, match="more than 2 files and folders"):
        pack("wide", [folder])


def test_an_unreadable_file_fails_where_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worker: Path
) -> None:
    """The package is imported; the import of the one module, and the opening of the one file, fail."""
    folder = write(tmp_path / "part", {"__init__.py": "", "closed.py": "", "closed.txt": ""})

    def read(path: Path, size: int) -> bytes:
        if "closed" in path.name:
            raise PermissionError(13, "Permission denied", str(path))
        return path.read_bytes()[:size]

    monkeypatch.setattr(archives, "_read", read)
    install([pack("part", [folder])])
    importlib.import_module("part")
    with pytest.raises(PermissionError, match=r"Permission denied.*closed\.py"):
        importlib.import_module("part.closed")
    (closed,) = worker.rglob("closed.txt")
    assert closed.stat().st_mode & 0o777 == 0


def test_a_task_without_a_folder_imports_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing can be written, modules are imported from memory, in any encoding."""
    folder = write(
        tmp_path / "mem", {"__init__.py": "", "word.py": "# coding: latin-1\nW = 'ö'\n".encode("latin-1")}
    )
    monkeypatch.setattr(archives, "_FOLDER", "/proc/none")
    install([pack("mem", [folder])])
    assert importlib.import_module("mem.word").W == "ö"
    assert any(isinstance(finder, task_main._OwnModules) for finder in sys.meta_path)


def test_a_worker_prefers_its_own_installation_of_a_spare_package(tmp_path: Path) -> None:
    """A local package hides an installed one, a spare one does not; one that was not sent says why."""
    write(tmp_path / "sent", {"colorsys.py": "HERE = 1\n", "spared.py": "HERE = 1\n"})
    local = pack("colorsys", [tmp_path / "sent" / "colorsys.py"])
    install([Archive(local.name, local.digest, local.content, is_spare=True)])
    assert not hasattr(importlib.import_module("colorsys"), "HERE")
    del sys.modules["colorsys"]
    install([local, pack("spared", [tmp_path / "sent" / "spared.py"], is_spare=True)])
    assert importlib.import_module("colorsys").HERE == importlib.import_module("spared").HERE == 1
    install([Archive("absent", "", b"", problem="too large: big.bin")])
    with pytest.raises(ModuleNotFoundError, match=r"too large: big\.bin"):
        importlib.import_module("absent")


# -- finding ----------------------------------------------------------------------------------------
def test_imports_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Imports in functions and by importlib count; installed packages and what nobody imports do not."""
    write(
        tmp_path,
        {
            "top.py": "import json, middle.deep as d\ndef f():\n    from lazy import x\n",
            "middle/__init__.py": "import importlib\nm = importlib.import_module('dynamic.part')\n",
            "middle/deep.py": "import numpy\n",
            "lazy.py": "import top\n",
            "dynamic/part.py": "",
            "nobody.py": "",
        },
    )
    monkeypatch.syspath_prepend(tmp_path)
    modules = LocalModules()
    assert {archive.name for archive in modules.add(["top.anything"])} == {"top", "middle", "lazy", "dynamic"}
    assert modules.add(["top", "json", "numpy", "__main__", "absent"]) == []
    assert [archive.name for archive in modules.copy().archives] == [
        archive.name for archive in modules.archives
    ]


def test_the_metadata_of_a_package_travel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entry points and the version are found where the package is installed; it is a spare one then."""
    write(
        tmp_path / "target",
        {
            "plug/__init__.py": "def run():\n    return 7\n",
            "plug-1.5.dist-info/RECORD": "plug/__init__.py,,\n",
            "plug-1.5.dist-info/METADATA": "Metadata-Version: 2.1\nName: plug\nVersion: 1.5\n",
            "plug-1.5.dist-info/entry_points.txt": "[tests.plugs]\nseven = plug:run\n",
            "other-1.0.dist-info/RECORD": "other.py,,\n",
        },
    )
    monkeypatch.syspath_prepend(tmp_path / "target")
    (archive,) = LocalModules().add(["plug"])
    assert archive.is_spare
    assert not any("other" in path for path in archive.files().contents)
    sys.path.remove(str(tmp_path / "target"))
    importlib.invalidate_caches()
    install([archive])
    (entry,) = importlib.metadata.entry_points(group="tests.plugs")
    assert entry.load()() == 7
    assert importlib.metadata.version("plug") == "1.5"


@pytest.mark.parametrize("folder", ["plain", "\udcff"])
def test_a_package_that_cannot_be_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    """A function of it is refused at each call; if another package imports it, the import has the reason.

    The path of a file in the reason may have bytes that are not UTF-8.
    """
    tmp_path /= folder
    write(tmp_path, {"needs.py": "import heavy\n", "heavy/__init__.py": "", "heavy/film.bin": b"x" * 100})
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(archives, "LOCAL_PACKAGE_BYTES_MAX", 90)
    modules = LocalModules()
    for _ in range(2):
        with pytest.raises(InvalidError, match=r"film\.bin"):
            modules.add(["heavy"])
    sent = {archive.name: archive for archive in LocalModules().add(["needs"])}
    assert "film.bin" in sent["heavy"].problem
    install(msgspec.msgpack.decode(msgspec.msgpack.encode(list(sent.values())), type=list[Archive]))
    sys.path.remove(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match=r"film\.bin"):
        importlib.import_module("needs")


def test_files_that_go_or_have_no_name_in_text_do_not_keep_a_package_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that went while the package was read fails where it is used; a name in bytes is left out."""
    write(tmp_path / "kit", {"__init__.py": "N = 1\n", "gone.py": ""})
    (tmp_path / "kit" / os.fsdecode(b"\xff.txt")).touch()

    def is_file(path: Path) -> bool:
        if path.name == "gone.py":
            path.unlink()
        return True

    monkeypatch.setattr(archives, "_is_file", is_file)
    files = pack("kit", [tmp_path / "kit"]).files()
    assert list(files.contents) == ["kit/__init__.py"]
    assert list(files.unreadable) == ["kit/gone.py"]


def test_a_package_that_cannot_be_read_fails_the_calls_that_need_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with the reason; the packages that were named with it are sent."""
    write(
        tmp_path, {"loop/__init__.py": "", "good/__init__.py": "import further\n", "further/__init__.py": ""}
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    metadata = local_modules._metadata

    def failing(name: str, places: Iterable[Path]) -> Iterator[Path]:
        if name == "loop":
            raise OSError("too many levels of symbolic links")
        return metadata(name, places)

    monkeypatch.setattr(local_modules, "_metadata", failing)
    modules = LocalModules()
    for _ in range(2):
        with pytest.raises(InvalidError, match="package loop cannot be sent to workers: too many levels"):
            modules.add(["loop", "good"])
    assert {archive.name for archive in modules.archives} == {"good", "further"}


def test_a_source_in_an_unknown_encoding_fails_where_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a private folder too, and the other modules of the package work."""
    write(
        tmp_path / "odd",
        {"__init__.py": "N = 1\n", "bad.py": b"# -*- coding: nothing -*-\n", "raw.py": b"'\xff'"},
    )
    archive = pack("odd", [tmp_path / "odd"])

    def full(_folder: str, _files: archives.Files) -> None:
        raise OSError

    monkeypatch.setattr(archives, "_write", full)
    install([archive])
    assert importlib.import_module("odd").N == 1
    for name in ("odd.bad", "odd.raw"):
        with pytest.raises(SyntaxError):
            importlib.import_module(name)

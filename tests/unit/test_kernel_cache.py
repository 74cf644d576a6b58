"""Compiled kernels on the disk: which folders are read, which is written, and when all kernels are there."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dios import kernel_cache, limits
from dios.kernel_sources import PACKAGE, kernel_states

pytest.importorskip("numba", reason="numba is not installed: make setup")

pytestmark = pytest.mark.long

STRANGER = 65_532

PROGRAM = """
import sys
from pathlib import Path

from dios import kernel_cache

place, *commands = sys.argv[1:]
kernel_cache.PACKAGE = Path(place)
sys.path.insert(0, place)
from kernels_of_a_test import double

assert double(21) == 42
if "mark" in commands:
    kernel_cache.mark_complete()
stats = double.stats
loaded = bool(stats.cache_hits) and not stats.cache_misses
where = "installation" if stats.cache_path.startswith(place + "/") else "own"
print("loaded" if loaded else "compiled", where, kernel_cache.is_complete())
"""


@pytest.fixture
def installation() -> Iterator[Path]:
    """An installation with one kernel, which every user can read and only its owner can write."""
    place = Path(tempfile.mkdtemp(prefix="dios-test-"))
    (place / "shared").mkdir()
    (place / "home").mkdir()
    (place / "shared" / "kernels_of_a_test.py").write_text(
        "from dios.kernels import kernel\n\n\n@kernel\ndef double(number):\n    return 2 * number\n"
    )
    for folder in (place, place / "shared"):
        folder.chmod(0o755)
    if os.geteuid() == 0:
        os.chown(place / "home", STRANGER, STRANGER)
    yield place / "shared"
    shutil.rmtree(place)


def run(installation: Path, *commands: str, user: int | None = None) -> str:
    """Run the kernel in a process with an empty home; return what it reports."""
    home = installation.parent / "home"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, installation, *commands],
        env={"HOME": str(home), "PATH": os.environ["PATH"], "PYTHONPATH": str(PACKAGE.parent)},
        cwd="/",
        user=user,
        group=user,
        extra_groups=None if user is None else [],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_kernels_are_compiled_once_into_the_installation(installation: Path) -> None:
    """The record that all are there is made by a process that loaded them."""
    assert run(installation) == "compiled installation False"
    assert run(installation, "mark") == "loaded installation True"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_a_user_who_cannot_write_the_installation_loads_its_kernels(installation: Path) -> None:
    """What root has compiled is complete for every user, and nothing is compiled again."""
    run(installation, "mark")
    assert run(installation, user=STRANGER) == "loaded installation True"
    assert not list((installation.parent / "home").rglob("*.nbi"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
@pytest.mark.parametrize("mode", [0o777, 0o700])
def test_a_folder_that_others_can_write_or_that_cannot_be_read_is_not_used(
    installation: Path, mode: int
) -> None:
    """The user compiles into the home directory, and is told that the kernels are not complete."""
    run(installation, "mark")
    folder = next(installation.glob("__pycache__/dios-kernels-*"))
    folder.chmod(mode)
    assert run(installation, user=STRANGER) == "compiled own False"
    assert run(installation, "mark", user=STRANGER) == "loaded own True"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two files of compiled kernels, recorded as complete."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    place = kernel_cache.writable_folder()
    assert place is not None
    for name in ("a.nbi", "a.1.nbc"):
        (place / name).write_text("code")
    assert not kernel_cache.is_complete()
    kernel_cache.mark_complete()
    assert kernel_cache.is_complete()
    return place


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_text("cod")])
def test_a_folder_with_a_missing_or_cut_file_is_not_complete(folder: Path, damage: object) -> None:
    """A record alone proves nothing: the files that it lists must be there."""
    assert callable(damage)
    damage(folder / "a.1.nbc")
    assert not kernel_cache.is_complete()


def test_a_copy_of_a_complete_folder_is_complete(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image may carry kernels, and a node copies them to where it can write."""
    shutil.copytree(folder, tmp_path / "other" / folder.name)
    shutil.rmtree(folder)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "other"))
    assert kernel_cache.is_complete()


def test_folders_of_other_versions_are_removed_from_the_oldest_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four stay, with the one that is created."""
    for number in range(6):
        older = tmp_path / f"dios-kernels-{number}"
        older.mkdir()
        os.utime(older, (number, number))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    fresh = kernel_cache.writable_folder()
    assert fresh is not None
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [fresh.name, *(f"dios-kernels-{number}" for number in (3, 4, 5))]
    )


def test_the_fingerprint_follows_files_with_kernels_and_the_bounds_that_they_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another file, another bound, and the time of a change do not count."""
    (tmp_path / "kernels.py").touch()
    changing = tmp_path / "with_kernels.py"
    changing.write_text(
        "from dios import limits\nfrom dios.kernels import kernel\nA = limits.SPRAYER_BATCH\n"
    )
    before = kernel_states([tmp_path], tmp_path)
    (tmp_path / "other.py").write_text("from dios.limits import QUEUE_ROWS_MAX\n")
    monkeypatch.setattr(limits, "QUEUE_ROWS_MAX", limits.QUEUE_ROWS_MAX + 1)
    os.utime(changing, (1, 1))
    assert kernel_states([tmp_path], tmp_path) == before
    with monkeypatch.context() as patch:
        patch.setattr(limits, "SPRAYER_BATCH", 1)
        assert kernel_states([tmp_path], tmp_path) != before
    changing.write_text(changing.read_text() + "B = 1\n")
    assert kernel_states([tmp_path], tmp_path) != before


def test_the_stamp_of_another_package_follows_its_own_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels of the laboratory are compiled again after a change there, and those of the product are not."""
    package = tmp_path / "package_with_kernels"
    package.mkdir()
    (package / "__init__.py").touch()
    changing = package / "sums.py"
    changing.write_text("from dios.kernels import kernel\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module(package.name)
    before, fingerprint = kernel_cache.stamp(package.name), kernel_cache.stamp("dios")
    changing.write_text("from dios.kernels import kernel\nA = 1\n")
    kernel_cache.stamp.cache_clear()
    assert kernel_cache.stamp(package.name) != before
    assert kernel_cache.stamp("dios") == fingerprint

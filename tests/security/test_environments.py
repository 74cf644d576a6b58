"""Packages that nobody has read: they reach the tasks that asked for them, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import dios
from dios.errors import InvalidError, NotPermittedError
from dios.lib.environments import archives
from tests.support.node.confinement import mechanisms_or_skip
from tests.support.node.running_node import RunningNode, running_node
from tests.support.wheels import make_wheel

CONFINED = """
import os, socket, sys
from pathlib import Path
from dios.lib.environments.installer import confine
folder, outside, with_network = sys.argv[1], sys.argv[2], sys.argv[3] == "1"
listener = socket.create_server(("127.0.0.1", 0))
confine(folder, with_network=with_network)

def outcome(action):
    try:
        action()
    except OSError as error:
        return type(error).__name__
    return "did"

print(
    outcome(lambda: Path(folder, "inside").write_text("x")),
    outcome(lambda: Path(outside, "outside").write_text("x")),
    outcome(lambda: Path(outside, "folder").mkdir()),
    outcome(lambda: Path(outside, "there").unlink()),
    outcome(lambda: os.posix_spawn("/bin/true", ["true"], {})),
    outcome(lambda: os.symlink("/etc", folder + "/link")),
    outcome(lambda: socket.create_connection(listener.getsockname()).close()),
)
"""


@pytest.fixture(scope="module", autouse=True)
def _mechanisms() -> None:
    """Skip on a machine that cannot confine a task."""
    mechanisms_or_skip()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """A node."""
    with running_node(tmp_path_factory.mktemp("node") / "data") as running:
        yield running


@pytest.mark.parametrize("with_network", [False, True])
def test_the_installer_changes_one_folder_and_starts_no_program(
    tmp_path: Path, *, with_network: bool
) -> None:
    """Whatever a wheel makes it do: files outside stay, and without an index there is no network either."""
    folder, outside = tmp_path / "inside", tmp_path / "outside"
    for place in (folder, outside):
        place.mkdir()
    (outside / "there").write_text("stays", encoding="utf-8")
    words = [sys.executable, "-c", CONFINED, str(folder), str(outside), str(int(with_network))]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    *answers, connected = done.stdout.split()
    assert answers == ["did", *["PermissionError"] * 5]
    assert connected == ("did" if with_network else "PermissionError")
    assert [path.name for path in outside.iterdir()] == ["there"]


@pytest.mark.parametrize("path", ["../../escaped.py", "/{tmp}/escaped.py", "fruit/../../../escaped.py"])
def test_a_wheel_with_a_path_that_leads_out_is_refused(node: RunningNode, tmp_path: Path, path: str) -> None:
    """No file is made elsewhere, and nothing is installed."""
    name = path.replace("/{tmp}", str(tmp_path))
    make_wheel(tmp_path / "wheels", "fruit", "1.0", {"fruit.py": "", "x.py": ""}, names={"x.py": name})
    with pytest.raises(InvalidError):
        dios.Executor(1, node=node.place, packages=["fruit"], wheels=tmp_path / "wheels")
    assert not [*tmp_path.rglob("escaped.py"), *archives.folder_of_archives().rglob("escaped.py")]


def test_nothing_of_a_package_runs_before_a_task_imports_it(
    node: RunningNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that Python loads at its start, modules with the names of those of DIOS, and scripts do nothing.

    Each would leave a file next to the wheels if it ran outside a task.
    """
    mark = f"open({str(tmp_path / 'ran')!r}, 'a').close()\n"
    files = {
        "evil.pth": f"import ran_at_start; {mark}",
        "ran_at_start.py": mark,
        "sitecustomize.py": mark,
        "usercustomize.py": mark,
        "msgspec/__init__.py": mark,
        "trio/__init__.py": mark,
        "cloudpickle/__init__.py": mark,
        "dios/__init__.py": mark,
        "pip/__init__.py": mark,
        "evil-1.0.data/scripts/evil": f"#!python\n{mark}",
    }
    wheels = tmp_path / "wheels"
    make_wheel(wheels, "evil", "1.0", files)

    # A function in a function travels by value, so that the worker imports nothing for it.
    def look_around() -> tuple[list[str], list[str]]:
        import os
        import sys

        modules = [
            name
            for name, module in sys.modules.items()
            if (getattr(module, "__file__", None) or "").startswith("/environment")
        ]
        return modules, os.listdir("/environment")  # noqa: PTH208 - the same

    with dios.Executor(1, node=node.place, packages=["evil"], wheels=wheels) as executor:
        modules, names = executor.submit(look_around).result()
    assert modules == []
    assert "evil.pth" in names
    assert "bin" not in names
    assert not (tmp_path / "ran").exists()


def test_no_package_is_built_from_source(node: RunningNode, tmp_path: Path) -> None:
    """Building runs code of the package: neither a named one nor one that a wheel needs is built."""
    mark = f"open({str(tmp_path / 'ran')!r}, 'a').close()\n"
    setup = tmp_path / "setup.py"
    setup.write_text(
        f"{mark}from setuptools import setup\nsetup(name='evil', version='1.0')\n", encoding="utf-8"
    )
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with tarfile.open(wheels / "evil-1.0.tar.gz", "w:gz") as archive:
        archive.add(setup, "evil-1.0/setup.py")
    source = (wheels / "evil-1.0.tar.gz").as_uri()
    make_wheel(wheels, "fruit", "1.0", {"fruit.py": ""}, requires=[f"evil @ {source}"])
    for packages in (["evil"], ["fruit"]):
        with pytest.raises(InvalidError):
            dios.Executor(1, node=node.place, packages=packages, wheels=wheels)
    assert not (tmp_path / "ran").exists()


def test_packages_over_the_bound_are_refused(
    node: RunningNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small wheel may unpack to much more; nothing of it is kept."""
    make_wheel(tmp_path, "fruit", "1.0", {"fruit.py": "", "zeros.txt": "0" * 2_000_000})
    monkeypatch.setattr(archives, "ENVIRONMENT_BYTES_MAX", 1_000_000)
    with pytest.raises(InvalidError, match="use fewer"):
        dios.Executor(1, node=node.place, packages=["fruit"], wheels=tmp_path)
    assert not list(archives.folder_of_archives().glob("building-*"))


def places_of_environments(data: str) -> list[str]:
    """Return what this worker sees of environments."""
    return [path for path in ("/environment", data) if os.path.exists(path)]  # noqa: PTH110 - a text


def test_a_task_sees_its_own_environment_alone(node: RunningNode, tmp_path: Path) -> None:
    """Neither the folder of all environments nor, without packages, any of them."""
    make_wheel(tmp_path, "fruit", "1.0", {"fruit.py": ""})
    folder = str(node.data / "environments")
    with (
        dios.Executor(1, node=node.place, packages=["fruit"], wheels=tmp_path) as own,
        dios.Executor(1, node=node.place) as plain,
    ):
        assert own.submit(places_of_environments, folder).result() == ["/environment"]
        assert plain.submit(places_of_environments, folder).result() == []


def add_environment() -> str:
    """Return the error of a worker that gives its node an environment."""
    from dios.wire.environments import CONTENT, name_for

    node = dios.connect()
    blob = node.create_program(b"pass")
    try:
        node.run(b"pass", template=name_for("0" * 40), inputs={CONTENT: blob.restrict("read")})
    except NotPermittedError as error:
        return str(error)
    return "did"


def test_code_of_a_task_adds_no_environment(node: RunningNode) -> None:
    """What a call leaves on the node would be imported by later tasks of its user."""
    with dios.Executor(1, node=node.place) as executor:
        assert "cannot add an environment" in executor.submit(add_environment).result()

"""The program with which the Makefile makes environments: its progress, and what an interruption leaves."""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import set_up
from tests.support.node.wheels import small_wheel

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]

LOCK = """# made by a program
iron==1 \\
    --hash=sha256:00
pip==26 \\
    --hash=sha256:01 \\
    --hash=sha256:02
pip-tools==7 \\
    --hash=sha256:03
"""
PIP = """
import pathlib, signal, sys
site = pathlib.Path(__file__).parents[1]
def install(name):
    (site / f"{name}-1.dist-info").mkdir(exist_ok=True)
    (site / f"{name}-1.dist-info" / "INSTALLER").write_text("pip")
if "install" in sys.argv:
    print("Collecting wood>=2")
    print("WARNING: Location 'file:///nowhere' is ignored: it is neither a file nor a directory.")
    print("WARNING: wood is old")
    print("Processing ./iron-1-py3-none-any.whl")
    print("Installing collected packages: wood, iron")
    install("wood")
    if "interrupted" in sys.argv:
        signal.pause()
    if "unknown" in sys.argv:
        sys.exit("ERROR: no such package")
    install("iron")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An environment whose pip installs two packages of nothing."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    pip = packages(tmp_path / "env") / "pip"
    pip.mkdir()
    (pip / "__init__.py").touch()
    (pip / "__main__.py").write_text(PIP)
    return tmp_path / "env"


def packages(folder: Path) -> Path:
    """Return the folder of an environment's packages."""
    return next(folder.glob("lib/python*/site-packages"))


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start the program as the Makefile does, with its output in a pipe."""
    command = [sys.executable, str(ROOT / "tests" / "support" / "set_up.py"), str(folder), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def read_until(process: subprocess.Popen[str], words: str) -> None:
    """Read the lines of output up to one with the words."""
    assert process.stdout is not None
    while words not in (line := process.stdout.readline()):
        assert line, f"the output ended without {words!r}"


def test_an_installation_in_a_pipe_shows_its_stages_and_true_warnings(folder: Path) -> None:
    """A warning of a place without a package means nothing while another place has the package."""
    with start(folder, "stones") as process:
        shown, _ = process.communicate()
    assert process.returncode == 0
    first, *rest = filter(None, shown.splitlines())
    assert first == f"installing stones into {folder}"
    assert rest[0] == "WARNING: wood is old"
    assert rest[-1].startswith(f"installing stones into {folder}: done")
    assert "nowhere" not in shown


def test_a_failure_shows_all_that_pip_said(folder: Path) -> None:
    """Even the warnings that mean nothing otherwise may be the reason now."""
    with start(folder, "unknown") as process:
        shown, _ = process.communicate()
    assert process.returncode == 1
    for words in ("Collecting wood", "nowhere", "ERROR: no such package", "ended with status 1"):
        assert words in shown


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_ends_pip_and_says_that_the_next_call_continues(
    folder: Path, number: signal.Signals
) -> None:
    """The number of packages is shown while pip works; after the interruption one line follows."""
    with start(folder, "interrupted") as process:
        read_until(process, "1 of 2 packages installed")
        process.send_signal(number)
        # Pip would keep the pipe open, and this would wait for ever.
        rest, _ = process.communicate()
    assert process.returncode == 128 + signal.SIGINT
    assert [line for line in rest.splitlines() if "packages installed" not in line] == [
        "stopped; the next `make` continues"
    ]


def test_with_a_lock_nothing_comes_without_a_hash(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pip itself comes first, then the tools that build the folders, then these, and then all others.

    A folder has no hash, and nothing is fetched for it.
    """
    (tmp_path / "lock").write_text(LOCK)
    (tmp_path / "iron").mkdir()
    (tmp_path / "iron" / "pyproject.toml").write_text('[project]\nname = "iron-works"\n')
    commands: list[list[str]] = []
    pip_lines = []

    def run(command: list[str], read: object = None) -> None:
        commands.append(command[4:])
        if "--requirement" in command:
            pip_lines.append(Path(command[-1]).read_text())

    monkeypatch.setattr(set_up, "run", run)
    arguments = ["--editable", f"{tmp_path}/iron[data]", "--group", "dev"]
    set_up.install(folder, arguments, tmp_path / "lock")
    checked = ["--require-hashes", "--only-binary=:all:", "--constraint", str(tmp_path / "lock")]
    quiet = ["--progress-bar", "off"]
    assert commands[0][:2] == ["--require-hashes", "--requirement"]
    assert pip_lines == ["pip==26 \\\n    --hash=sha256:01 \\\n    --hash=sha256:02\n"]
    assert commands[1:] == [
        [*quiet, *checked, "--group", "build"],
        [*quiet, "--no-index", "--no-deps", "--no-build-isolation", "--editable", f"{tmp_path}/iron"],
        [*quiet, *checked, "iron-works[data]", "--group", "dev"],
    ]
    commands.clear()
    set_up.install(folder, ["--group", "docs"], tmp_path / "lock")
    assert commands[1:] == [[*quiet, *checked, "--group", "docs"]]


@pytest.mark.parametrize("fault", ["another hash", "missing in the lock"])
def test_pip_refuses_a_package_that_the_lock_does_not_have(
    tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The locked pip takes hashes from constraints, also for the packages that others need."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    wheels = tmp_path / "wheels"
    rows = [
        (name, hashlib.sha256(small_wheel(wheels, name, "1", requires=more).read_bytes()).hexdigest())
        for name, more in (("iron", ["coal>=1"]), ("coal", []))
    ]
    lock = tmp_path / "lock"
    command = [sys.executable, "-m", "pip", "download", "--no-index", "--find-links", str(wheels)]
    command += ["--dest", str(tmp_path / "there"), "--require-hashes", "--constraint", str(lock), "iron"]

    def downloaded() -> str:
        lock.write_text("".join(f"{name}==1 --hash=sha256:{digest}\n" for name, digest in rows))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stderr if done.returncode else ""

    assert not downloaded()
    if fault == "another hash":
        rows[1] = ("coal", "0" * 64)
        assert "DO NOT MATCH THE HASHES" in downloaded()
    else:
        rows.pop()
        assert "In --require-hashes mode" in downloaded()


def test_a_package_that_is_installed_by_half_is_installed_again(folder: Path) -> None:
    """Pip writes the file INSTALLER at the end, and believes in a package that lacks it."""
    whole, half = (packages(folder) / f"{name}-1.dist-info" for name in ("whole", "half"))
    for described in (whole, half):
        described.mkdir()
        (described / "METADATA").touch()
    (whole / "INSTALLER").touch()
    set_up.remove_half_installed(packages(folder))
    assert (whole.exists(), half.exists()) == (True, False)


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "bin" / "python").unlink(),
        lambda folder: (packages(folder) / "pip" / "__main__.py").write_text("raise ImportError"),
    ],
)
def test_an_environment_without_a_working_pip_is_made_again(
    folder: Path, damage: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interruption may leave an environment whose interpreter works and which has no pip."""
    commands: list[list[str]] = []
    monkeypatch.setattr(set_up, "run", commands.append)
    set_up.make_environment(folder)
    assert not commands
    damage(folder)
    set_up.make_environment(folder)
    assert commands == [[sys.executable, "-m", "venv", "--clear", str(folder)]]

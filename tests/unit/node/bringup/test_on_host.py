from __future__ import annotations

import ast
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dios.node.bringup import on_host, ssh, supervise
from tests.support.node.wheels import small_wheel


def test_the_program_for_hosts_needs_nothing_installed() -> None:
    """It imports the standard library alone, and reaches a shell's words unchanged."""
    tree = ast.parse(Path(on_host.__file__).read_text())
    names = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert names <= sys.stdlib_module_names
    assert ssh.BOOTSTRAP.count("'") == 2
    assert "!" not in ssh.BOOTSTRAP


def test_the_end_of_the_caller_ends_the_work(tmp_path: Path) -> None:
    """If the connection ends, the program ends with all that it has started; nothing is half installed."""
    request: dict[str, object] = {
        "do": "install",
        "prefix": str(tmp_path / "dios"),
        "environment": "x",
        "requirements": "nothing==1 --hash=sha256:0\n",
        "files": [],
    }
    with subprocess.Popen(
        [sys.executable, "-I", on_host.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        while "making the environment" not in process.stdout.readline():
            pass
        process.stdin.close()
        # The end of its own work would be an answer: here pip would refuse the hash.
        assert process.stdout.read() == ""
        assert process.wait(60) == 1
    assert not (tmp_path / "dios" / "env").is_symlink()


@pytest.mark.long
def test_a_wheel_with_another_hash_is_not_installed(tmp_path: Path) -> None:
    """Files that were changed on the host, or on the way, are refused, and no environment is in use."""
    wheel = small_wheel(tmp_path, "thing", "1.0").read_bytes()
    name = "thing-1.0-py3-none-any.whl"
    request: dict[str, object] = {
        "do": "install",
        "prefix": str(tmp_path / "dios"),
        "environment": "x",
        "requirements": f"thing==1.0 --hash=sha256:{hashlib.sha256(wheel).hexdigest()}\n",
        "files": [[name, len(wheel) + 1]],
    }
    with subprocess.Popen(
        [sys.executable, "-I", on_host.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request).encode() + b"\n" + wheel + b"\0")
        process.stdin.flush()
        answer = json.loads(process.stdout.readlines()[-1])
    assert "DO NOT MATCH THE HASHES" in answer["failed"]
    assert not (tmp_path / "dios" / "env").is_symlink()


def test_a_directory_of_others_is_not_used(tmp_path: Path) -> None:
    """A prefix with files that `dios up` did not make is refused."""
    (tmp_path / "mine").touch()
    with pytest.raises(on_host.FailedError, match="did not make"):
        on_host.Places(str(tmp_path)).make()


@pytest.mark.parametrize("manager", ["system", "user"])
def test_the_unit_is_one_that_systemd_takes(tmp_path: Path, manager: str) -> None:
    """The checker of systemd finds nothing in the unit, where it is installed."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    places = on_host.Places(str(tmp_path))
    python = places.environment / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    unit = tmp_path / on_host.UNIT
    unit.write_text(on_host.unit_text(places, manager))
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def test_units_are_started_and_removed_through_systemd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a user's systemd runs, the node is a unit of it, which is enabled, and later removed."""
    told = tmp_path / "told"
    for name in ("systemctl", "loginctl"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\necho "{name} $*" >>{told}\necho running\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    places = on_host.Places(str(tmp_path / "dios"))
    places.make()
    on_host._start_unit(places, on_host._units())
    unit = tmp_path / "config" / "systemd" / "user" / on_host.UNIT
    assert str(places.data) in unit.read_text()
    on_host.stop({"prefix": str(places.prefix), "delete": True})
    assert not unit.exists()
    assert not places.prefix.exists()
    assert [line for line in told.read_text().splitlines() if "is-system-running" not in line] == [
        "loginctl enable-linger",
        "systemctl --user daemon-reload",
        "systemctl --user enable --now dios-node.service",
        "systemctl --user disable --now dios-node.service",
        "systemctl --user daemon-reload",
    ]


class Pauses:
    """A clock that moves by the pauses, which it records."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def monotonic(self) -> float:
        """The sum of all pauses."""
        return sum(self.seconds)

    def sleep(self, seconds: float) -> None:
        """Sleep in no time."""
        self.seconds.append(seconds)


def test_a_supervisor_never_gives_a_failing_node_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that fails is started again until it succeeds, after pauses that grow to a bound."""
    pauses = Pauses()
    monkeypatch.setattr(supervise, "time", pauses)
    runs = tmp_path / "runs"
    fails = ["sh", "-c", f'echo x >>{runs}; test "$(wc -l <{runs})" -ge "$0"']
    assert supervise.supervise([*fails, "12"]) == 0
    assert runs.read_text() == "x\n" * 12
    assert pauses.seconds == [5, 10, 20, 40] + [supervise.PAUSE_S_MAX] * 7

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dios.cli.main import app
from dios.cli.nodes.audit import entry_line
from dios.core.effects import Audit
from dios.host.audit.log import AuditLog, AuditRecord, segments
from dios.host.audit.reader import AuditEntry
from tests.support.node.command_user import require_schema

DONE = (
    Audit(1, "create", "ok", "uid:1000", "aaaa00000000", "0b0b00000001", ""),
    Audit(2, "acquire", "denied", "uid:1000", "aaaa00000000", "0b0b00000002", "needs READ"),
    Audit(
        3, "ended", "exception", "uid:7", "cccc00000000", "cccc00000000", "ValueError: no\nLast lines:\ndeep"
    ),
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with an audit log of three records."""
    log = AuditLog(tmp_path / "audit")
    for record in DONE:
        log.append(record)
    log.close()
    return tmp_path


def typed(data: Path, line: str, status: int = 0) -> list[int]:
    """The places in DONE of what `dios audit` with a line shows."""
    result = CliRunner().invoke(app, ["audit", *line.split(), "--json", "--data", str(data)])
    assert result.exit_code == status, result.output
    require_schema("dios audit", result.stdout)
    return [json.loads(shown)["index"] for shown in result.stdout.splitlines()]


def test_a_record_is_one_line() -> None:
    """A detail of several lines, or with control characters, cannot break the table or garble it."""
    record = AuditRecord(
        now=0,
        action="ended",
        outcome="exception",
        principal="uid:0",
        task="00aa11bb22cc",
        subject="00aa11bb22cc",
        detail="ValueError: \x1b[31m\nLast lines:\nmore",
    )
    line = entry_line(AuditEntry(3, "00000001.audit", 0, b"", record))
    assert line.endswith(r"ValueError: \x1b[31m")
    assert "\x1b" not in line


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", [0, 1, 2]),
        ("--last 2", [1, 2]),
        ("--since 1 --last 1", [2]),
        ("--outcome denied", [1]),
        ("--task aaaa --subject 0b0b00000001", [0]),
        ("--action acq", []),
    ],
)
def test_filters_choose_records(data: Path, line: str, expected: list[int]) -> None:
    """`dios audit` lists what fits every filter that is given."""
    assert typed(data, line) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("grep denied", [1]),
        ("grep create", [0]),
        ("grep uid:1000", [0, 1]),
        ("grep cccc0", [2]),
        ("grep ^0b0b", [0, 1]),
        ("grep deep", [2]),
        ("grep valueerror -i", [2]),
        ("grep (Value|Key)Error", [2]),
        ("grep --action create uid", [0]),
        ("grep --last 1 uid", [2]),
    ],
)
def test_a_pattern_is_sought_in_every_field(data: Path, line: str, expected: list[int]) -> None:
    """`dios audit grep` finds a word or an expression wherever it stands, among what fits the filters."""
    assert typed(data, line) == expected


def test_a_pattern_that_is_nowhere_ends_as_grep_does(data: Path) -> None:
    """Without a record that fits, `dios audit grep` shows none and ends with 1; capital letters count."""
    assert typed(data, "grep valueerror", status=1) == []


def test_a_pattern_that_is_none_is_told(data: Path) -> None:
    """A bad expression is told with its fault and with how to seek the character itself."""
    result = CliRunner().invoke(app, ["audit", "grep", "(", "--data", str(data)])
    assert result.exit_code == 1
    assert "is not a regular expression" in result.stderr
    assert "backslash" in result.stderr


def test_options_before_the_command_are_refused(data: Path) -> None:
    """An option before the command, where it would be ignored, is refused, and the right way shown."""
    result = CliRunner().invoke(app, ["audit", "--outcome", "denied", "grep", "x", "--data", str(data)])
    assert result.exit_code == 1
    assert "dios audit grep --outcome denied" in result.stderr


def test_a_changed_log_fails_verify(data: Path) -> None:
    """`dios audit verify` ends with 0 for a whole log, with 1 for one in which a byte was changed."""
    arguments = ["audit", "verify", "--json", "--data", str(data)]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    (segment,) = segments(data / "audit")
    held = bytearray(segment.read_bytes())
    held[-40] ^= 1
    segment.write_bytes(held)
    assert CliRunner().invoke(app, arguments).exit_code == 1


def test_a_file_of_heads_that_does_not_exist_is_an_error(data: Path) -> None:
    """`dios audit verify --heads FILE` names a file that it cannot compare with, also a folder."""
    for path, state in ((data / "typo", "does not exist"), (data, "is no regular file")):
        arguments = ["audit", "verify", "--heads", str(path), "--data", str(data)]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 1
        assert f"{path}: it {state}" in result.stderr


def test_a_file_of_heads_in_a_folder_that_cannot_be_read_is_an_error(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer says so, in place of an error of the system."""
    secret, stat = data / "secret" / "heads", os.stat

    def refuse(path: int | str | Path, **options: object) -> os.stat_result:
        if str(path) == str(secret):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, **options)  # type: ignore[arg-type] # those of the caller

    monkeypatch.setattr(os, "stat", refuse)
    result = CliRunner().invoke(app, ["audit", "verify", "--heads", str(secret), "--data", str(data)])
    assert f"{secret}: it does not exist, or its folder cannot be read" in result.stderr


def test_the_json_of_verify_says_which_heads_were_not_compared(data: Path) -> None:
    """A file without heads is no agreement: the verdict has the reason."""
    (data / "heads").touch()
    arguments = ["audit", "verify", "--json", "--heads", str(data / "heads"), "--data", str(data)]
    verdict = json.loads(CliRunner().invoke(app, arguments).stdout)
    assert (verdict["ok"], verdict["unknown"]) == (True, [f"{data / 'heads'}: it has no heads"])


def test_following_shows_the_last_and_what_comes(data: Path) -> None:
    """`dios audit follow` begins with the last records, goes on with new ones, and ends with Ctrl-C."""
    command = [sys.executable, "-m", "dios.cli.main", "audit", "follow", "--last", "1", "--json"]
    with subprocess.Popen([*command, "--data", str(data)], stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        assert json.loads(following.stdout.readline())["index"] == 2
        log = AuditLog(data / "audit")
        log.append(DONE[0])
        log.close()
        assert json.loads(following.stdout.readline())["index"] == 3
        following.send_signal(signal.SIGINT)
        following.communicate(timeout=60)
    assert following.returncode == 130


@pytest.mark.parametrize("command", ["grep", "follow", "verify"])
def test_each_command_of_the_log_teaches(command: str) -> None:
    """The help of each command of `dios audit` shows examples, and it is on the page."""
    told = CliRunner().invoke(app, ["audit", command, "--help"]).output
    assert re.search(rf"^ +dios audit {command}", told.partition("Examples:")[2], re.MULTILINE)
    page = (Path(__file__).resolve().parents[4] / "docs" / "command-line.md").read_text()
    assert f"audit {command}" in page

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from dios import errors
from dios.cli.common import output
from dios.cli.common.streams import INTERRUPTED


def test_an_error_tells_cause_place_and_next_command(capsys: pytest.CaptureFixture[str]) -> None:
    """A DiosError ends a command with status 1 and says what, where and what to do."""
    with pytest.raises(typer.Exit) as ended, output.reporting("dios get"):
        raise errors.UnreachableError("no node answers", call="lookup", fingerprint="00aa11bb22cc")
    told = capsys.readouterr().err
    assert ended.value.exit_code == output.FAILED
    assert "dios get: no node answers" in told
    assert "lookup on 00aa11bb22cc, EHOSTUNREACH" in told
    assert "dios node ls" in told.replace("\n", " "), "a node answered, so that another one is out of reach"


def test_a_node_that_does_not_answer_is_looked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """Where nobody answered at all, the next command is the one that shows the node."""
    with pytest.raises(typer.Exit), output.reporting("dios get"):
        raise errors.UnreachableError("no node listens")
    assert "dios-node status" in capsys.readouterr().err.replace("\n", " ")


def test_advice_that_the_message_gives_is_not_repeated() -> None:
    """Where the message names the command already, or groups have no part in a refusal, nothing is added."""
    assert not output.next_step(
        errors.UnreachableError("no 'n9' here; `dios node ls` lists them", call="run")
    )
    assert not output.next_step(errors.NotPermittedError("the token is used up"))
    assert output.next_step(errors.NotPermittedError("no right to write", call="acquire"))


def test_an_error_as_json_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """With --json an error is one JSON object on the error stream, and the result stream stays empty."""
    with pytest.raises(typer.Exit), output.reporting("dios get", as_json=True):
        raise errors.Conflict("twice", call="commit_write")
    captured = capsys.readouterr()
    assert json.loads(captured.err)["error"] == "ECANCELED"
    assert not captured.out


def test_a_missing_file_is_no_stack_trace(capsys: pytest.CaptureFixture[str]) -> None:
    """An error of the operating system names the file."""
    with pytest.raises(typer.Exit), output.reporting("dios put"):
        raise FileNotFoundError(2, "No such file or directory", "here.txt")
    assert "dios put: here.txt: No such file or directory" in capsys.readouterr().err


def test_ctrl_c_ends_quietly(capsys: pytest.CaptureFixture[str]) -> None:
    """An interrupt ends a command with 130 and without a word."""
    with pytest.raises(typer.Exit) as ended, output.reporting("dios put"):
        raise KeyboardInterrupt
    assert ended.value.exit_code == INTERRUPTED
    assert not capsys.readouterr().err


@pytest.mark.parametrize("kind", list(errors.BY_CODE.values()))
def test_every_error_can_be_told(kind: type[errors.DiosError], capsys: pytest.CaptureFixture[str]) -> None:
    """Each exception of the tree becomes text that has its message, its call and its code's name."""
    output.report(kind("something", call="stat"), as_json=False, doing="dios x")
    told = capsys.readouterr().err
    assert "dios x: something" in told
    assert f"where: stat, {kind.code.name}" in told


def test_an_error_without_a_place_has_no_line_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    """A bare code is no place: an error of no call and no object shows its message alone."""
    output.report(errors.InvalidError("--memory must be at least 1 KiB"), as_json=False, doing="dios run")
    assert capsys.readouterr().err == "dios run: --memory must be at least 1 KiB\n"


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 << 20, "5.0 MiB"), (3 << 30, "3.0 GiB")],
)
def test_sizes_are_for_people(size: int, text: str) -> None:
    """A size has the largest unit in which it is at least one."""
    assert output.size_text(size) == text


@pytest.mark.parametrize(
    ("span", "text"), [(0, "0.0 s"), (125, "2 min 05 s"), (3 * 3600 + 120, "3 h 02 min")]
)
def test_spans_are_for_people(span: int, text: str) -> None:
    """A span has at most two units."""
    assert output.span_text(span * 10**9) == text


def test_a_table_in_a_pipe_is_not_cut(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal every cell is whole, in columns."""
    output.table(("name", "size"), [("x" * 200, "1"), ("y", "22")], right=("size",))
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "x" * 200 + "     1"
    assert lines[2].split() == ["y", "22"]


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_long_table_is_written_a_page_at_a_time(monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> None:  # noqa: FBT001
    """All rows but those of the last page are written when the next row is asked for."""
    written = Terminal() if is_terminal else io.StringIO()
    monkeypatch.setattr(sys, "stdout", written)
    count = 3 * output.ROWS_PER_PAGE + 1

    def rows() -> Iterator[tuple[str, str]]:
        for number in range(count):
            assert written.getvalue().count("file") >= number - output.ROWS_PER_PAGE
            yield f"file{number}", "x" * (number + 1 == count)

    output.table(("NAME", "X"), rows(), right=("X",))
    shown = re.sub(r"\x1b\[\d*m", "", written.getvalue())
    assert [line.split()[0] for line in shown.splitlines()] == [
        "NAME",
        *(f"file{number}" for number in range(count)),
    ]


def test_a_json_list_is_written_a_value_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    """It is the same text as that of the whole list, and each value is written before the next is made."""
    values = [{"name": "a\u202e", "inner": [1, {"x": None}]}, {}, "\x1b"]

    def rows() -> Iterator[object]:
        for place, value in enumerate(values):
            if place:
                assert capsys.readouterr().out
            yield value

    output.write_json(values)
    whole = capsys.readouterr().out
    output.write_json_list(values)
    assert capsys.readouterr().out == whole
    output.write_json_list(rows())
    output.write_json([])
    output.write_json_list([])
    assert capsys.readouterr().out.endswith("[]\n[]\n")


def test_a_table_shows_control_characters_and_obeys_none(capsys: pytest.CaptureFixture[str]) -> None:
    """Text that somebody else chose cannot move the cursor, end a row or colour the terminal."""
    output.table(("LABEL",), [("a\nb\x1b[31mc",)])
    assert capsys.readouterr().out == "LABEL\na\\nb\\x1b[31mc\n"


HOSTILE = "a\x1b]52;c;bG9vdA==\x07b\x1b]0;title\x1b\\c\x9b31md\u202ee\r\x08f[link=x]g"
"""Sets clipboard and title, colours, turns the direction of text, overwrites, and is markup."""

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class Terminal(io.StringIO):
    """A terminal that keeps what is written to it."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        """It is one."""
        return True


def test_a_tasks_output_does_not_control_the_terminal() -> None:
    """Escape sequences are shown and not obeyed, also where they arrive in pieces; text stays text."""
    terminal = Terminal(newline="")
    shown = output.bytes_output(terminal)
    for byte in f"{HOSTILE}\nü\tx\r\ny".encode() + b"\xff\x9b":
        shown.write(bytes([byte]))
    shown.flush()
    text = terminal.getvalue()
    assert not CONTROL.search(text)
    assert "\\x1b]52;c;bG9vdA==\\x07b" in text
    assert text.endswith("\nü\tx\ny\\xff\\x9b")


def test_a_file_gets_the_bytes_as_they_are() -> None:
    """What is no terminal gets a task's output unchanged."""
    file = io.TextIOWrapper(io.BytesIO())
    output.bytes_output(file).write(HOSTILE.encode() + b"\xff")
    assert file.buffer.getvalue() == HOSTILE.encode() + b"\xff"


def test_nothing_that_a_command_writes_controls_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines, named values, tables, JSON, errors and progress escape what others wrote; markup is text."""
    terminal = Terminal(newline="")
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(f"sys.{name}", terminal)
    output.say(HOSTILE)
    output.write_line(HOSTILE)
    output.write_json({HOSTILE: [HOSTILE]})
    output.write_facts({"label": HOSTILE})
    output.report(errors.DiosError(HOSTILE), as_json=False, doing="dios x")
    output.report(errors.DiosError(HOSTILE), as_json=True, doing="dios x")
    output.table(("A", "B"), [(HOSTILE, HOSTILE)], whole=True)
    text = terminal.getvalue()
    assert not CONTROL.search(text)
    assert text.count("[link=x]") == 9
    output.table(("A", "B"), [(HOSTILE, "[red]x[/red]")])
    with output.transfer(HOSTILE, 1 << 30) as advance:
        advance(1)
    with output.waiting(HOSTILE), output.progress(HOSTILE) as tell:
        tell(HOSTILE)
    for wrong in ("\x1b]", "\x07", "\x9b", "\u202e"):
        assert wrong not in terminal.getvalue()
    assert "[red]x[/red]" in terminal.getvalue()


def test_json_is_what_was_given(capsys: pytest.CaptureFixture[str]) -> None:
    """Escaped JSON reads as the same value."""
    output.write_json({"label": HOSTILE, "text": "ü\n"})
    assert json.loads(capsys.readouterr().out) == {"label": HOSTILE, "text": "ü\n"}


def test_commands_write_bytes_through_one_place() -> None:
    """No command gives bytes to standard output or standard error itself, where they would control it."""
    commands = Path(output.__file__).parents[1]
    raw = {
        path.relative_to(commands).as_posix()
        for path in commands.rglob("*.py")
        if re.search(r"std(out|err)\.buffer", path.read_text(encoding="utf-8"))
    }
    # The one writes to what is no terminal.
    assert raw == {"objects/logs.py"}

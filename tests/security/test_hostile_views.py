"""Hostile tasks against those who look at them: servers for agents and notebooks, commands on a terminal.

Not for: the functions that escape text (``tests/unit/cli/common/test_output.py``).
"""

from __future__ import annotations

import asyncio
import os
import pty
import select
import subprocess
import time
from collections.abc import Iterator

import pytest

import dios
from tests.integration import test_jupyter_kernel, test_mcp_server
from tests.support.node.command_user import DEADLINE_SECONDS, Person
from tests.support.node.confinement import mechanisms_or_skip

EVIL = "\x1b]0;owned\x07\x1b[5;7m\x9b2J\u202e\u2066live\u2028\x85\x08\x7f\U000e0041"
CONTROLS = ["\x1b]0", "\x1b[5;7m", "\x9b", "\u202e", "\u2066", "\u2028", "\x85", "\x08", "owned\x07", "\x7f"]
CONTROLS += ["\U000e0041"]
"""Parts of it that no terminal, notebook or agent may get."""


def harmless(shown: str) -> None:
    """Fail if text controls what displays it."""
    assert not [control for control in CONTROLS if control in shown], shown


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    """A person with a node, a kernel for notebooks, and a task that says evil things in every place."""
    mechanisms_or_skip()
    someone = Person(tmp_path_factory.mktemp("home"))
    someone.types("dios-node start --data ./node0 --detach")
    someone.types("dios kernel install --prefix env --name dios-test --node node0")
    (someone.home / "notebooks").mkdir()
    yield someone
    someone.types("dios-node stop")


# -- a server for agents ------------------------------------------------------------------------------
CODE = {
    "half of a pair of letters": "print('\\udcff'); raise ValueError('\\ud800')",
    "a name of an exception": f"raise type({EVIL!r}, (Exception,), {{}})({EVIL!r})",
    "a name of a file in a traceback": f"exec(compile('1/0', {EVIL!r}, 'exec'))",
    "a number without end": "10 ** 5000",
    "a value that shows itself": f"type('V', (), {{'__repr__': lambda self: {EVIL!r} * 10 ** 6}})()",
    "a value that never shows itself": "type('V', (), {'__repr__': lambda self: 1 / 0})()",
    "a printed letter for each terminal": "import os; os.write(1, bytes(range(256)) * 100)",
    "a warning": f"import warnings; warnings.warn({EVIL!r})",
}
VALUES = {
    "half of a pair of letters": "'\\ud800'",
    "letters for a terminal, as a key": f"{{{EVIL!r}: {EVIL!r}}}",
    "no number": "[float('nan'), float('inf')]",
    "a number without end": "10 ** 5000",
    "a list in a list, without end": "__import__('functools').reduce(lambda x, _: [x], range(9999), [])",
    "a list in itself": "(lambda x: x.append(x) or x)([])",
    "bytes for a terminal": f"{EVIL!r}.encode()",
}
FILES = {
    "a file of the machine": "/etc/passwd",
    "a file above": "../../../../etc/passwd",
    "a folder": "./",
    "an input that is none": "/inputs/../../etc/passwd",
    "letters for a terminal": f"{EVIL}.txt",
    "a zero": "a.\0/b",
    "no end": "a/" * 100_000,
    "the names of the interpreter": "__builtins__",
}


@pytest.fixture(scope="module")
def said(person: Person) -> dict[str, str]:
    """What an agent is told for each attack; after it, a call of another session was answered."""
    answers: dict[str, str] = {}

    async def agent() -> None:
        async with test_mcp_server.client_of(person, "--timeout", "20") as client:
            victim = await test_mcp_server.call(client, "open")

            async def attack(kind: str, name: str, *calls: tuple[str, dict[str, str]]) -> None:
                session = await test_mcp_server.call(client, "open")
                for tool, arguments in calls:
                    given = {"session": session, **arguments}
                    result = await client.call_tool(tool, given)  # type: ignore[attr-defined] # as there
                    answers[f"{kind}: {name}"] = "".join(part.text for part in result.content)
                assert await test_mcp_server.call(client, "run", session=victim, code="1") == "[value]\n1"
                await test_mcp_server.call(client, "close", session=session)

            for name, code in CODE.items():
                await attack("code", name, ("run", {"code": code}))
            for name, value in VALUES.items():
                await attack("value", name, ("run", {"code": f"v = {value}"}), ("get", {"name": "v"}))
            for name, path in FILES.items():
                await attack("get", name, ("get", {"name": path}))
                await attack("put", name, ("put", {"name": path, "value": EVIL}))

    asyncio.run(agent())
    return answers


@pytest.mark.parametrize(
    "attack",
    [
        *(f"code: {name}" for name in CODE),
        *(f"value: {name}" for name in VALUES),
        *(f"{tool}: {name}" for name in FILES for tool in ("get", "put")),
    ],
)
def test_an_agent_gets_bounded_text(said: dict[str, str], attack: str) -> None:
    """No text of a session controls a terminal, is longer than the bounds, or is of a file outside."""
    harmless(said[attack])
    assert len(said[attack]) < 400_000
    assert "root:" not in said[attack]


# -- a kernel for notebooks ---------------------------------------------------------------------------
TABLE = "a table with a script"
CELLS = {
    **CODE,
    TABLE: "import pandas; pandas.DataFrame({'<script>alert()</script>': ['<img src=x>']})",
    "a name that completes": f"globals()['x{EVIL}'] = 1; x_y = 2",
}


def texts_in(value: object) -> Iterator[str]:
    """Every text in a message."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for member in value:
            yield from texts_in(member)
    elif isinstance(value, str):
        yield value


def test_a_notebook_gets_harmless_text(person: Person) -> None:
    """Output, errors, values and names of a session control nothing, and the kernel goes on."""
    notebook = test_jupyter_kernel.Notebook(person)
    try:
        for name, code in CELLS.items():
            shown = notebook.shows(notebook.sends(code))
            for text in (*texts_in(shown.reply), *texts_in([content for _, content in shown.messages])):
                harmless(text)
            page = "".join(str(content.get("data")) for _, content in shown.messages).partition("text/html")[
                2
            ]
            assert page or name != TABLE, shown.messages
            assert "<script" not in page, name
            assert "<img" not in page, name
        completed = notebook.asks(notebook.client.complete("x", 1))
        assert completed["matches"] == ["x_y"]
        assert notebook.runs("1 + 1").data("execute_result", "text/plain") == "2"
    finally:
        notebook.close()


# -- commands on a terminal ---------------------------------------------------------------------------
PROGRAM = f"""
import dios, sys
node = dios.connect()
print({EVIL!r}); print({EVIL!r}, file=sys.stderr)
node.progress(0.5)
sys.stdout.flush()
raise type("Evil", (Exception,), {{"__qualname__": {EVIL!r}}})({EVIL!r})
"""
WAITING = b"import dios; node = dios.connect(); node.progress(0.5); node.next_event()"
COMMANDS = (
    "ps -a",
    "describe {}",
    "logs {}",
    "report {} -o page.html",
    "top",
    "debug {}",
    "kill {}",
    "run evil.py",
)


def on_terminal(person: Person, line: str) -> str:
    """What a command shows on a terminal until it ends, or is asked to."""
    ours, theirs = pty.openpty()
    environment = {**person.environment, "TERM": "xterm-256color", "COLUMNS": "200"}
    command = person.command(f"dios {line}")
    running = subprocess.Popen(
        command,
        cwd=person.home,
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    seen, end = b"", time.monotonic() + DEADLINE_SECONDS
    asked = False
    try:
        while time.monotonic() < end:
            silent = not select.select([ours], [], [], 3)[0]
            if not silent:
                try:
                    seen += os.read(ours, 65536)
                except OSError:
                    break  # it has ended
            if not asked and (silent or (line == "top" and b"live" in seen)):
                os.write(ours, b"\x04" if line.startswith("debug") else b"q")
                asked = True
    finally:
        running.kill()
        running.wait()
        os.close(ours)
    return seen.decode(errors="replace")


@pytest.mark.parametrize("line", COMMANDS)
def test_a_terminal_gets_harmless_text(person: Person, line: str) -> None:
    """Titles, output, errors and arguments of a task are shown, and none of them controls the terminal."""
    person.writes("evil.py", PROGRAM)
    with dios.connect(person.home / "node0") as node:
        task = node.run(WAITING if line == "top" else PROGRAM.encode(), args=(EVIL,), label=EVIL)
        if line != "top":
            task.wait(timeout=DEADLINE_SECONDS)
        shown = on_terminal(person, line.format(task.fingerprint))
        task.kill()
    assert "live" in shown or "page" in shown, shown
    harmless(shown)

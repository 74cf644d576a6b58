"""`dios mcp` and the protocol's own client: an agent gets an interpreter, and nothing else of the machine."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from dios.host.confinement.mechanisms import probe
from dios.host.confinement.notifications import FORKS
from dios.installation import extra_command
from tests.support.layouts import busybox_layout
from tests.support.node.command_user import DEADLINE_SECONDS, Person
from tests.support.node.confinement import runtimes_or_skip
from tests.support.node.running_node import running_node, wait_until
from tests.support.node.sandboxes import has_printed

pytestmark = pytest.mark.long

mcp = pytest.importorskip("mcp", reason="the package mcp is not installed")


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    """A person with a node and a file."""
    someone = Person(tmp_path_factory.mktemp("home"))
    someone.types("dios-node start --data ./node0 --detach")
    someone.writes("sales.csv", "city,amount\nRome,8\n")
    yield someone
    someone.types("dios-node stop")


def client_of(person: Person, *options: str) -> AbstractAsyncContextManager[object]:
    """Return a client that starts the server, as an agent does."""
    command = [*person.command("dios mcp"), *options]
    parameters = mcp.StdioServerParameters(
        command=command[0], args=command[1:], env=person.environment, cwd=str(person.home)
    )
    client: AbstractAsyncContextManager[object] = mcp.Client(parameters)
    return client


async def call(client: object, tool: str, **arguments: str) -> str:
    """Call a tool that succeeds, and return its texts."""
    result = await client.call_tool(tool, arguments)  # type: ignore[attr-defined]  # the package may be missing
    text = "\n".join(part.text for part in result.content if part.type == "text")
    assert not result.is_error, text
    return text


async def refused(client: object, tool: str, **arguments: str) -> str:
    """Call a tool that fails, and return its message."""
    result = await client.call_tool(tool, arguments)  # type: ignore[attr-defined]  # the same
    assert result.is_error
    return "\n".join(part.text for part in result.content)


def test_an_agent_runs_code_in_sessions(person: Person) -> None:
    """Sessions keep variables, results have output, value and error, and each session is its own."""

    async def agent() -> None:
        async with client_of(person, "--input", "sales=sales.csv", "--timeout", "20") as client:
            tools = await client.list_tools()  # type: ignore[attr-defined]  # the same
            assert {tool.name for tool in tools.tools} == {
                *("open", "run", "put", "get", "fork", "reset", "list", "close")
            }
            assert all(tool.description for tool in tools.tools)
            first, two = await call(client, "open"), await call(client, "open")
            assert (
                await call(client, "run", session=first, code="x = 20\nprint('hi')\nx + 1")
                == "hi\n[value]\n21"
            )
            assert "NameError" in await call(client, "run", session=two, code="x")
            assert await call(client, "run", session=first, code="x = 2") == "(no output)"
            assert await call(client, "get", session=first, name="x") == "2"
            assert "Rome" in await call(client, "run", session=first, code="inputs['sales'].read()")
            told = await call(client, "run", session=first, code="open('/etc/passwd')")
            assert "The sandbox refused: files of the machine" in told
            await call(client, "put", session=first, name="text", value="a text")
            assert await call(client, "run", session=first, code="text") == "[value]\n'a text'"
            assert await call(client, "list") == f"{first}: open\n{two}: open"
            await call(client, "close", session=two)
            assert "you have no session" in await refused(client, "run", session=two, code="1")

    asyncio.run(agent())


def test_an_agent_with_an_image_has_programs_and_files(tmp_path: Path) -> None:
    """It runs them without a shell, lists files, and forks the state of the files."""
    runtimes_or_skip()
    busybox_layout(tmp_path / "tiny")
    person = Person(tmp_path)

    async def agent(place: str) -> None:
        async with client_of(person, "--image", "oci-layout:tiny:tiny", "--node", place) as client:
            first = await call(client, "open")
            output = await client.call_tool(  # type: ignore[attr-defined]  # the package may be missing
                "exec",
                {"session": first, "arguments": ["sh", "-c", "cat; echo no >&2; exit 3"], "stdin": "in"},
            )
            assert output.content[0].text == "in\n[stderr]\nno\n[exit status 3]"
            await call(client, "put", session=first, name="/tmp/own", value="12")
            assert await call(client, "files", session=first, folder="/tmp") == (
                "file              2 0644 own"
            )
            second = await call(client, "fork", session=first)
            await call(client, "put", session=second, name="/tmp/own", value="other")
            assert await call(client, "get", session=first, name="/tmp/own") == "12"
            assert "No such file" in await refused(client, "files", session=first, folder="/nothing")

    with running_node(tmp_path / "data", container_runtime="any") as node:
        asyncio.run(agent(node.place))


def test_a_session_that_ends_is_reset(person: Person) -> None:
    """The agent reads why its session ended, and gets a fresh one under the same name."""

    async def agent() -> None:
        async with client_of(person, "--timeout", "5") as client:
            name = await call(client, "open")
            assert "exit status 3" in await call(client, "run", session=name, code="import os; os._exit(3)")
            assert "reset" in await refused(client, "run", session=name, code="1")
            assert "exit status 3" in await call(client, "list")
            await call(client, "reset", session=name)
            assert await call(client, "run", session=name, code="1") == "[value]\n1"

    asyncio.run(agent())


def test_an_agent_forks_a_session(person: Person) -> None:
    """The fork has the variables, and is a session of its own, if the person permits forks."""
    listeners = probe()[FORKS]
    if not listeners.available:
        pytest.skip(f"sessions cannot be forked here: {listeners.detail}")

    async def agent() -> None:
        async with client_of(person) as client:
            original = await call(client, "open")
            assert "forkable=True" in await refused(client, "fork", session=original)
            assert await call(client, "list") == f"{original}: open"
        async with client_of(person, "--forkable") as client:
            original = await call(client, "open")
            await call(client, "run", session=original, code="x = [1]")
            two = await call(client, "fork", session=original)
            assert await call(client, "run", session=two, code="x.append(2); x") == "[value]\n[1, 2]"
            assert await call(client, "run", session=original, code="x") == "[value]\n[1]"
            await call(client, "close", session=original)
            assert await call(client, "list") == f"{two}: open"
            assert "you have no session" in await refused(client, "fork", session=original)

    asyncio.run(agent())


def test_figures_are_pictures(person: Person) -> None:
    """An open figure of matplotlib is a picture in the content."""
    pytest.importorskip("matplotlib")

    async def agent() -> None:
        async with client_of(person) as client:
            name = await call(client, "open")
            code = "import matplotlib.pyplot as plt\nplt.plot([1, 2]);"
            result = await client.call_tool("run", {"session": name, "code": code})  # type: ignore[attr-defined]  # the same
            assert [part.type for part in result.content] == ["text", "image"]
            assert result.content[1].mime_type == "image/png"

    asyncio.run(agent())


def test_data_frames_are_texts(person: Person) -> None:
    """The last value, and what the code gives to display, are in the text of the result."""
    pytest.importorskip("pandas")

    async def agent() -> None:
        async with client_of(person) as client:
            name = await call(client, "open")
            code = "import pandas\ndisplay(pandas.DataFrame({'first': [1]}))\npandas.DataFrame({'last': [2]})"
            told = await call(client, "run", session=name, code=code)
            assert told.split() == ["first", "0", "1", "[value]", "last", "0", "2"]

    asyncio.run(agent())


def test_hostile_code_hurts_neither_the_server_nor_another_session(person: Person) -> None:
    """Forged answers, floods and values that cannot be shown end their session or their call alone."""

    async def agent() -> None:
        async with client_of(person, "--timeout", "20") as client:
            good, bad = await call(client, "open"), await call(client, "open")
            await call(client, "run", session=good, code="kept = 1")
            told = await call(client, "run", session=bad, code="for _ in range(9000): print('x' * 99)")
            assert len(told) < 40_000
            await call(client, "run", session=bad, code="deep = []\nfor _ in range(9000): deep = [deep]")
            await refused(client, "get", session=bad, name="deep")
            code = (
                "import gc, time\nfrom dios.lib.sandbox import protocol\n"
                "own = next(each for each in gc.get_objects() if type(each).__name__ == '_Session')\n"
                "own.send(protocol.DONE, b'rubbish')\ntime.sleep(3600)"
            )
            assert "broke the protocol" in await call(client, "run", session=bad, code=code)
            assert await call(client, "get", session=good, name="kept") == "1"

    asyncio.run(agent())


def test_sessions_are_bounded(person: Person) -> None:
    """Calls at the same time open no more sessions than the bound says, and closing one makes room."""
    from dios.bridges.mcp import SESSIONS_MAX

    async def agent() -> None:
        async with client_of(person) as client:
            opening = [client.call_tool("open", {}) for _ in range(SESSIONS_MAX + 3)]  # type: ignore[attr-defined]  # the same
            results = await asyncio.gather(*opening)
            names = [reply.content[0].text for reply in results if not reply.is_error]
            assert len(set(names)) == SESSIONS_MAX
            assert len((await call(client, "list")).splitlines()) == SESSIONS_MAX
            assert "close one" in await refused(client, "open")
            await call(client, "close", session=names[0])
            assert "you have no session" in await refused(client, "close", session=names[0])
            await call(client, "open")

    asyncio.run(agent())


def test_control_characters_of_the_code_are_escaped(person: Person) -> None:
    """Whatever shows a result to a person is not controlled by it."""

    async def agent() -> None:
        async with client_of(person) as client:
            name = await call(client, "open")
            code = "print('\\x1b]0;title\\x07')\nv = '\\x9b2J\\u202e'\nraise ValueError(v)"
            told = await call(client, "run", session=name, code=code)
            told += await call(client, "get", session=name, name="v")
            told += await call(client, "run", session=name, code="import os; os.write(2, b'x'); v")
            assert "\\x1b]0;title\\x07" in told
            assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(told)

    asyncio.run(agent())


def test_a_call_that_the_agent_cancels_is_interrupted(person: Person) -> None:
    """The code stops, and the session goes on with its variables."""

    async def agent() -> None:
        async with client_of(person, "--timeout", "1000") as client:
            name = await call(client, "open")
            await call(client, "run", session=name, code="count = 0")
            running = asyncio.create_task(
                call(
                    client,
                    "run",
                    session=name,
                    code="import os\nos.write(1, b'it runs')\nwhile True: count += 1",
                )
            )
            await asyncio.to_thread(wait_until, lambda: has_printed(person, b"it runs"), "the code runs")
            running.cancel()
            async with asyncio.timeout(DEADLINE_SECONDS):
                told = await call(client, "run", session=name, code="1 + 1")
            assert told == "[value]\n2"
            assert await call(client, "run", session=name, code="count > 0") == "[value]\nTrue"

    asyncio.run(agent())


def test_without_a_node_all_sessions_share_a_private_one(tmp_path: Path) -> None:
    """The private node starts with the server, and nothing of it is left at the end."""
    someone = Person(tmp_path)
    someone.environment["TMPDIR"] = str(tmp_path)

    def nodes() -> int:
        return len(list(tmp_path.glob("dios-*")))

    async def agent() -> None:
        async with client_of(someone) as client:
            for _ in range(2):
                name = await call(client, "open")
                assert await call(client, "run", session=name, code="1") == "[value]\n1"
            assert nodes() == 1

    asyncio.run(agent())
    wait_until(lambda: not nodes(), "the private node ends")


def test_wrong_options_are_told_to_the_person(person: Person) -> None:
    """The server does not start with options that no session could have."""
    assert "nothing.csv" in person.types("dios mcp --input x=nothing.csv", status=1).stderr
    assert "memory must be" in person.types("dios mcp --memory much", status=1).stderr
    assert "--http" in person.types("dios mcp 8000", status=1).stderr
    assert "--http" in person.types("dios mcp --idle 3", status=1).stderr
    assert "--idle must be" in person.types("dios mcp --http 0 --idle nan", status=1).stderr


def test_without_the_package_the_command_says_how_to_get_it() -> None:
    """The error names the extra."""
    code = "import sys\nfrom dios.cli.main import app\nsys.modules['mcp'] = None\napp(['mcp'])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 1
    assert extra_command("mcp") in done.stderr

"""The server of sandboxes with the unmodified clients of E2B, in Python and in TypeScript."""

from __future__ import annotations

import concurrent.futures
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from e2b_code_interpreter import Sandbox as Client

from tests.support.layouts import busybox_layout
from tests.support.node.command_user import Person
from tests.support.node.confinement import runtimes_or_skip
from tests.support.node.sandbox_servers import Key, image_templates, server_of
from tests.support.node.task_folder import TEMPORARY
from tests.support.web_servers import Authority

e2b = pytest.importorskip("e2b", reason="the package e2b is not installed")
interpreter = pytest.importorskip("e2b_code_interpreter", reason="e2b-code-interpreter is not installed")

ROOT = Path(__file__).parents[2]
NPM_S = 240
LIFE_S = 600


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Key]:
    """A key of a server whose template for commands is an image."""
    runtimes_or_skip()
    person = Person(tmp_path_factory.mktemp("home"))
    layout = busybox_layout(tmp_path_factory.mktemp("layout") / "tiny")
    person.environment["DIOS_CONTAINER_RUNTIME"] = "any"
    person.types("dios-node start --data ./node0 --detach")
    person.types("dios group create tries")
    with server_of(person, templates=image_templates(layout)) as server:
        yield Key(server, "laptop", "--sandboxes", "16")
    person.types("dios-node stop")


@pytest.fixture(scope="module")
def coder(key: Key) -> Iterator[object]:
    """A sandbox for code."""
    box = interpreter.Sandbox.create(timeout=LIFE_S, envs={"COLOUR": "blue"}, **key.e2b())
    yield box
    box.kill()


@pytest.fixture(scope="module")
def machine(key: Key) -> Iterator[object]:
    """A sandbox with the programs of an image."""
    box = e2b.Sandbox.create(timeout=LIFE_S, envs={"COLOUR": "blue"}, **key.e2b())
    yield box
    box.kill()


def test_a_sandbox_is_created_described_listed_and_ended(key: Key) -> None:
    """Its metadata, template, time and state are those that the client gave."""
    box = interpreter.Sandbox.create(timeout=100, metadata={"who": "a b", "x": "&="}, **key.e2b())
    info = box.get_info()
    assert (info.template_id, info.metadata) == ("code-interpreter-v1", {"who": "a b", "x": "&="})
    assert (info.end_at - info.started_at).total_seconds() >= 100
    query = e2b.SandboxQuery(metadata={"who": "a b", "x": "&="})
    (listed,) = e2b.Sandbox.list(query=query, **key.e2b()).next_items()
    assert listed.sandbox_id == box.sandbox_id
    assert not e2b.Sandbox.list(query=e2b.SandboxQuery(metadata={"who": "a"}), **key.e2b()).next_items()
    before = info.end_at
    box.set_timeout(500)
    assert box.get_info().end_at > before
    assert box.is_running()
    assert box.kill()
    assert not box.is_running()
    assert not box.kill()


def test_lists_come_in_pages(key: Key) -> None:
    """A page has the token of the next one, until there is none."""
    boxes = [interpreter.Sandbox.create(metadata={"of": "pages"}, **key.e2b()) for _ in range(3)]
    pages = e2b.Sandbox.list(query=e2b.SandboxQuery(metadata={"of": "pages"}), limit=2, **key.e2b())
    sizes = []
    while pages.has_next:
        sizes.append(len(pages.next_items()))
    assert sizes == [2, 1]
    for box in boxes:
        box.kill()


def test_code_has_output_values_and_errors(coder: Client) -> None:
    """The output comes while it runs; the last value is text and JSON; an exception has its traceback."""
    heard: list[str] = []
    done = coder.run_code(
        "print('hi')\n[1, {'a': None}]", on_stdout=lambda message: heard.append(message.line)
    )
    assert (heard, done.text, done.results[0].json) == (["hi\n"], "[1, {'a': None}]", [1, {"a": None}])
    count = done.execution_count
    failed = coder.run_code("import sys\nprint('bad', file=sys.stderr)\n1/0")
    assert failed.error is not None
    assert (failed.error.name, failed.error.value) == ("ZeroDivisionError", "division by zero")
    assert "line 3" in failed.error.traceback
    assert (failed.logs.stderr, failed.execution_count) == (["bad\n"], count + 1)


def test_values_are_shown_in_their_forms(coder: Client) -> None:
    """Figures are PNG, data frames columns, and HTML is rebuilt; a value is not shown twice."""
    pytest.importorskip("matplotlib")
    (figure,) = coder.run_code("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()").results
    assert figure.png.startswith("iVBORw0KGgo")
    code = "import pandas as pd\nframe = pd.DataFrame({'a': [1, 2]})\ndisplay(frame)\nframe"
    shown, value = coder.run_code(code).results
    assert (shown.data, value.data, value.is_main_result) == ({"a": [1, 2]}, {"a": [1, 2]}, True)
    (page,) = coder.run_code("from IPython.display import HTML\nHTML('<b>x</b><script>1</script>')").results
    assert page.html == "<b>x</b>"


def test_variables_of_the_environment(coder: Client) -> None:
    """Those of the sandbox stay, and those of one run end with it."""
    code = "import os\nos.environ.get('COLOUR'), os.environ.get('MORE')"
    assert coder.run_code(code, envs={"MORE": "1", "COLOUR": "red"}).text == "('red', '1')"
    assert coder.run_code(code).text == "('blue', None)"


def test_a_client_that_stops_waiting_interrupts_its_code(coder: Client) -> None:
    """The session goes on, with its variables."""
    coder.run_code("kept = 5")
    with pytest.raises(e2b.TimeoutException):
        coder.run_code("while True: pass", timeout=1)
    assert coder.run_code("kept").text == "5"


def test_contexts_are_sessions(coder: Client) -> None:
    """Each has variables of its own; a restart drops them."""
    coder.run_code("x = 1")
    context = coder.create_code_context()
    assert coder.run_code("x", context=context).error is not None
    coder.run_code("x = 2", context=context)
    assert (coder.run_code("x", context=context).text, coder.run_code("x").text) == ("2", "1")
    assert context.id in {row.id for row in coder.list_code_contexts()}
    coder.restart_code_context(context)
    assert coder.run_code("x", context=context).error is not None
    coder.remove_code_context(context)
    with pytest.raises(e2b.NotFoundException):
        coder.run_code("x", context=context)


def test_a_pause_keeps_everything(key: Key) -> None:
    """A paused sandbox refuses calls, and a connection resumes it."""
    box = interpreter.Sandbox.create(**key.e2b())
    box.run_code("x = 7")
    assert box.pause()
    assert not box.pause()
    assert box.get_info().state == e2b.SandboxState.PAUSED
    with pytest.raises(e2b.SandboxException, match="paused"):
        box.run_code("x")
    again = interpreter.Sandbox.connect(box.sandbox_id, **key.e2b())
    assert again.run_code("x").text == "7"
    again.kill()


def test_a_session_that_ended_is_reported(key: Key) -> None:
    """The run has the reason; the sandbox does not run any more, and a restart of its context helps."""
    box = interpreter.Sandbox.create(**key.e2b())
    error = box.run_code("import os\nos._exit(3)").error
    assert error is not None
    assert "exit status 3" in error.value
    assert not box.is_running()
    with pytest.raises(e2b.SandboxException):
        box.files.read("/tmp/x")
    (context,) = box.list_code_contexts()
    box.restart_code_context(context)
    assert box.run_code("1 + 1").text == "2"
    box.kill()


@pytest.mark.parametrize("kind", ["coder", "machine"])
def test_files(kind: str, request: pytest.FixtureRequest) -> None:
    """They are written with their folders, read, listed, renamed and removed; missing ones are reported."""
    files = request.getfixturevalue(kind).files
    top = TEMPORARY if kind == "coder" else "/tmp"
    data = bytes(range(256)) * 1000
    assert files.write(f"{top}/new/data.bin", data).path == f"{top}/new/data.bin"
    assert bytes(files.read(f"{top}/new/data.bin", format="bytes")) == data
    assert b"".join(files.read(f"{top}/new/data.bin", format="stream")) == data
    files.write_files([{"path": f"{top}/new/ä.txt", "data": "ä"}, {"path": f"{top}/new/2", "data": b"2"}])
    assert files.read(f"{top}/new/ä.txt") == "ä"
    files.write(f"{top}/new/3", io.BytesIO(b"\r\n--x"))
    files.write(f"{top}/new/4", "packed" * 100, gzip=True)
    assert (files.read(f"{top}/new/3"), files.read(f"{top}/new/4")) == ("\r\n--x", "packed" * 100)
    assert sorted(row.name for row in files.list(f"{top}/new")) == ["2", "3", "4", "data.bin", "ä.txt"]
    assert {row.path for row in files.list(top, depth=2)} >= {f"{top}/new", f"{top}/new/2"}
    assert files.rename(f"{top}/new/2", f"{top}/other/two").name == "two"
    assert not files.exists(f"{top}/new/2")
    info = files.get_info(f"{top}/other/two")
    assert (info.size, info.type, info.owner) == (1, e2b.FileType.FILE, "root")
    assert files.make_dir(f"{top}/made/deep")
    assert not files.make_dir(f"{top}/made/deep")
    for name in (f"{top}/new", f"{top}/made", f"{top}/other"):
        files.remove(name)
    for call in (files.read, files.list, files.get_info, files.remove):
        with pytest.raises(e2b.FileNotFoundException):
            call(f"{top}/new")


def test_commands_have_output_status_and_variables(machine: Client) -> None:
    """The output comes while they run; a status that is not 0 is an error of the client."""
    heard: list[str] = []
    done = machine.commands.run(
        "echo out; echo err >&2; pwd; echo $COLOUR $MORE",
        cwd="/etc",
        envs={"MORE": "1"},
        on_stdout=heard.append,
    )
    assert (done.stdout, done.stderr, done.exit_code) == ("out\n/etc\nblue 1\n", "err\n", 0)
    assert "".join(heard) == done.stdout
    with pytest.raises(e2b.CommandExitException) as failed:
        machine.commands.run("echo x; exit 3")
    assert (failed.value.exit_code, failed.value.stdout) == (3, "x\n")
    large = machine.commands.run("head -c 3000000 /dev/zero")
    assert len(large.stdout) == 3_000_000


def test_commands_run_side_by_side(machine: Client) -> None:
    """One in the background is listed, has an input, is followed by another client, and is killed."""
    cat = machine.commands.run("cat; echo end", background=True, stdin=True)
    other = machine.commands.connect(cat.pid)
    assert machine.commands.run("echo here").stdout == "here\n"
    assert [row.pid for row in machine.commands.list()] == [cat.pid]
    machine.commands.send_stdin(cat.pid, "typed\n")
    machine.commands.close_stdin(cat.pid)
    assert (cat.wait().stdout, other.wait().stdout) == ("typed\nend\n", "typed\nend\n")
    endless = machine.commands.run("while true; do echo more; done", background=True)
    assert endless.kill()
    with pytest.raises(e2b.CommandExitException) as killed:
        endless.wait()
    assert killed.value.exit_code == 128 + 9
    assert not machine.commands.kill(endless.pid)
    assert machine.commands.list() == []


def test_commands_and_code_run_at_once(key: Key) -> None:
    """Neither waits for the other, also in one sandbox."""
    box = interpreter.Sandbox.create("base", timeout=LIFE_S, **key.e2b())
    waits = "import os, time\nwhile not os.path.exists('/tmp/go'): time.sleep(0.01)\n'went'"
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        code = pool.submit(box.run_code, waits)
        assert box.commands.run("echo here").stdout == "here\n"
        box.commands.run("echo >/tmp/go")
        assert code.result(NPM_S).text == "'went'"
    box.kill()


def test_a_terminal(machine: Client) -> None:
    """A shell in it echoes its input, knows its size, and ends."""
    heard = bytearray()
    terminal = machine.pty.create(e2b.PtySize(33, 77))
    machine.pty.resize(terminal.pid, e2b.PtySize(44, 99))
    machine.pty.send_stdin(terminal.pid, b"echo o''k; exit 5\n")
    with pytest.raises(e2b.CommandExitException) as ended:
        terminal.wait(on_pty=heard.extend)
    assert ended.value.exit_code == 5
    assert b"o''k" in heard
    assert b"\nok\r\n" in heard


def test_a_command_is_killed_at_the_time_limit_of_its_call(machine: Client) -> None:
    """The client learns that it was too slow, and it runs no more."""
    with pytest.raises(e2b.TimeoutException):
        machine.commands.run("sleep 1000", timeout=0.5)
    for _ in range(1000):
        if not machine.commands.list():
            break
    else:
        pytest.fail("the command still runs")


def test_a_snapshot_is_a_template(key: Key, machine: Client) -> None:
    """A sandbox that begins with it has the files; it is removed by its name."""
    machine.files.write("/tmp/state", "kept")
    snapshot = machine.create_snapshot(name="first")
    later = e2b.Sandbox.create(snapshot.snapshot_id, **key.e2b())
    assert later.files.read("/tmp/state") == "kept"
    assert later.commands.run("cat state", cwd="/tmp").stdout == "kept"
    later.kill()
    assert e2b.Sandbox.delete_snapshot(snapshot.snapshot_id, **key.e2b())
    with pytest.raises(e2b.SandboxException):
        e2b.Sandbox.create(snapshot.snapshot_id, **key.e2b())


def test_calls_that_are_not_supported_say_so(key: Key, coder: Client, machine: Client) -> None:
    """None of them succeeds silently: the client raises with our reason."""
    options = key.e2b()
    attempts = {
        "no programs": lambda: coder.commands.run("ls"),
        "Python alone": lambda: coder.run_code("1", language="r"),
        "get_metrics": machine.get_metrics,
        "inotify": lambda: machine.files.watch_dir("/tmp"),
        "one user, root": lambda: machine.commands.run("ls", user="user"),
        "autoPause": lambda: e2b.Sandbox.create(lifecycle={"on_timeout": "pause"}, **options),
        "network": lambda: e2b.Sandbox.create(network={"allow_out": ["1.1.1.1"]}, **options),
        "fork": machine.fork,
        "list_snapshots": lambda: e2b.Sandbox.list_snapshots(**options).next_items(),
        "there are: base": lambda: e2b.Sandbox.create("nothing", **options),
    }
    for reason, attempt in attempts.items():
        with pytest.raises(e2b.SandboxException, match=reason):
            attempt()


def test_a_key_is_needed(key: Key) -> None:
    """A wrong one is an error of authentication, before anything is started."""
    with pytest.raises(e2b.AuthenticationException):
        e2b.Sandbox.create(**{**key.e2b(), "api_key": "e2b_" + "0" * 40})


def test_a_key_at_its_bound_is_told(key: Key) -> None:
    """The client does not try again in vain."""
    small = Key(key.server, "small", "--sandboxes", "1")
    box = interpreter.Sandbox.create(**small.e2b())
    with pytest.raises(e2b.RateLimitException, match="the most of this key"):
        interpreter.Sandbox.create(**small.e2b())
    with pytest.raises(e2b.SandboxException, match="at most 3600 seconds"):
        box.set_timeout(3601)
    box.kill()


def run_example(**environment: str) -> None:
    """Run the example in Python, which has the variables of E2B alone."""
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "e2b_client.py"],
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        timeout=NPM_S,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("hello\n[2, 4, 6]\nsum.txt\n12\n", 0), done.stderr


def test_the_example_in_python(key: Key) -> None:
    """It runs without a change."""
    run_example(**key.environment())


def test_the_example_over_tls(key: Key, tmp_path: Path) -> None:
    """The client checks the certificate, and uses HTTP/1.1."""
    authority = Authority()
    authority.server_context(tmp_path, "localhost")
    pair, trusted = tmp_path / "localhost-1.pem", tmp_path / "authority.pem"
    pair.chmod(0o600)
    trusted.write_bytes(authority.pem)
    with server_of(key.server.person, "--certificate", str(pair), "--private-key", str(pair)) as server:
        url = f"https://localhost:{server.port}"
        urls = {"E2B_API_URL": url, "E2B_SANDBOX_URL": url, "SSL_CERT_FILE": str(trusted)}
        run_example(**{**key.environment(), **urls})


def test_the_example_in_typescript(key: Key, tmp_path: Path) -> None:
    """The package of npm works, too. Skip without node or the registry of npm."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("node and npm are not installed")
    shutil.copy(ROOT / "examples" / "e2b_client.mjs", tmp_path)
    install = [npm, "install", "--silent", "--no-audit", "--no-fund", "e2b@2", "@e2b/code-interpreter@2"]
    try:
        fetched = subprocess.run(
            install, cwd=tmp_path, capture_output=True, text=True, timeout=NPM_S, check=False
        )
    except subprocess.TimeoutExpired:
        pytest.skip("the registry of npm does not answer")
    if fetched.returncode:
        pytest.skip(f"npm cannot install the package: {fetched.stderr[-200:]}")
    done = subprocess.run(
        ["node", "e2b_client.mjs"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], **key.environment()},
        capture_output=True,
        text=True,
        timeout=NPM_S,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("hello\n[2, 4, 6]\nsum.txt\n12\nout 0\n", 0), done.stderr

"""The Jupyter kernel "DIOS sandbox", with Jupyter's own client: its cells run in a sandbox."""

from __future__ import annotations

import base64
import importlib
import json
from asyncio import set_event_loop
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.support.node.command_user import Person

pytest.importorskip("ipykernel", reason="the package ipykernel is not installed")
jupyter_client = pytest.importorskip("jupyter_client", reason="the package jupyter_client is not installed")

PATIENCE_S = 120.0
Content = dict[str, object]


class Shown(NamedTuple):
    """The reply to a cell, and the messages that the notebook shows below it."""

    reply: Content
    messages: list[tuple[str, Content]]

    def only(self, kind: str) -> Content:
        """Return the one message of a kind."""
        (single,) = (content for message_kind, content in self.messages if message_kind == kind)
        return single

    def text(self) -> str:
        """Return the output."""
        return "".join(str(content["text"]) for kind, content in self.messages if kind == "stream")

    def data(self, kind: str, mime: str) -> str:
        """Return the data of the one message of a kind."""
        data = self.only(kind)["data"]
        assert isinstance(data, dict)
        return str(data[mime])


class Notebook:
    """A notebook: a kernel that Jupyter started, and its client."""

    def __init__(self, person: Person) -> None:
        manager = jupyter_client.kernelspec.KernelSpecManager(
            kernel_dirs=[str(person.home / "env/share/jupyter/kernels")], ensure_native_kernel=False
        )
        self.manager = jupyter_client.manager.KernelManager(
            kernel_name="dios-test",
            kernel_spec_manager=manager,
            connection_file=str(person.home / "kernel.json"),
        )
        self.manager.start_kernel(cwd=str(person.home / "notebooks"), env=person.environment)
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE_S)

    def sends(self, code: str) -> str:
        """Send a cell, and return the number of the request."""
        # Jupyter drops cells that arrive soon after one that failed: no subject of these tests.
        return str(self.client.execute(code, stop_on_error=False))

    def shows(self, request: str) -> Shown:
        """Wait until a cell has ended."""
        messages: list[tuple[str, Content]] = []
        while True:
            message = self.client.get_iopub_msg(timeout=PATIENCE_S)
            if message["parent_header"].get("msg_id") != request:
                continue
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                break
            if message["msg_type"] not in {"status", "execute_input"}:
                messages.append((message["msg_type"], message["content"]))
        return Shown(self.asks(request), messages)

    def runs(self, code: str) -> Shown:
        """Run a cell that raises nothing."""
        shown = self.shows(self.sends(code))
        assert shown.reply["status"] == "ok", shown
        return shown

    def fails(self, code: str) -> str:
        """Run a cell that raises, and return its traceback."""
        shown = self.shows(self.sends(code))
        assert shown.reply["status"] == "error", shown
        error = shown.only("error")
        assert {key: shown.reply[key] for key in error} == error
        lines = error["traceback"]
        assert isinstance(lines, list)
        return "\n".join(lines)

    def asks(self, request: str) -> Content:
        """Wait for the reply to a request on the shell channel."""
        while True:
            # The client may have asked several times whether the kernel is ready.
            reply = self.client.get_shell_msg(timeout=PATIENCE_S)
            if reply["parent_header"]["msg_id"] == request:
                content: Content = reply["content"]
                return content

    def close(self) -> None:
        """End the kernel."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()
        # The client leaves its event loop open.
        importlib.import_module("jupyter_core.utils").ensure_event_loop().close()
        set_event_loop(None)


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    """A person with a node, and a kernel whose notebooks have an input."""
    someone = Person(tmp_path_factory.mktemp("home"))
    someone.types("dios-node start --data ./node0 --detach")
    someone.writes("sales.csv", "city,amount\nRome,8\n")
    someone.writes("notebooks/zmq.py", "raise SystemExit('a file of the notebook folder was loaded')\n")
    options = "--input sales=sales.csv --bound repr_chars=1000 --node node0"
    someone.types(f"dios kernel install --prefix env --name dios-test {options}")
    yield someone
    someone.types("dios-node stop")


@pytest.fixture(scope="module")
def notebook(person: Person) -> Iterator[Notebook]:
    """One notebook for all tests."""
    opened = Notebook(person)
    yield opened
    opened.close()


def test_cells_show_output_and_values(notebook: Notebook) -> None:
    """Output, the last value and variables are as in any notebook; the input is there."""
    shown = notebook.runs("import sys\nprint('out')\nprint('err', file=sys.stderr)\nx = 20\nx + 1")
    streams = [content for kind, content in shown.messages if kind == "stream"]
    assert streams == [{"name": "stdout", "text": "out\n"}, {"name": "stderr", "text": "err\n"}]
    assert shown.data("execute_result", "text/plain") == "21"
    assert shown.only("execute_result")["execution_count"] == shown.reply["execution_count"]
    assert notebook.runs("x + 2").data("execute_result", "text/plain") == "22"
    assert notebook.runs("x;").messages == []
    assert len(notebook.runs("'long' * 1_000").data("execute_result", "text/plain")) < 1_100
    shown = notebook.runs("open('/inputs/sales').read()")
    assert shown.data("execute_result", "text/plain") == r"'city,amount\nRome,8\n'"


@pytest.mark.extended
def test_tables_and_figures_are_shown(notebook: Notebook) -> None:
    """The last value is a table in HTML, others are displayed before it, and figures are pictures."""
    pytest.importorskip("pandas")
    shown = notebook.runs(
        "import pandas as pd\ndisplay(pd.DataFrame({'first': [1]}))\npd.DataFrame({'<b>': ['<script>']})"
    )
    assert "<th>first</th>" in shown.data("display_data", "text/html")
    html = shown.data("execute_result", "text/html")
    assert "<td>&lt;script&gt;</td>" in html
    assert "<script>" not in html
    assert "<script>" in shown.data("execute_result", "text/plain")
    pytest.importorskip("matplotlib")
    shown = notebook.runs("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()")
    assert base64.b64decode(shown.data("display_data", "image/png")).startswith(b"\x89PNG")


RICH = """
import base64, struct
PNG = b"\\x89PNG\\r\\n\\x1a\\n" + struct.pack(">I4sII", 13, b"IHDR", 3, 4)
class Rich:
    def _repr_html_(self): return "<b onclick=x>bold</b><script>alert(1)</script>"
    def _repr_png_(self): return PNG
class Bundle:
    def _repr_mimebundle_(self, include=None, exclude=None):
        forms = {"text/plain": "plain", "text/html": "<i>x</i>", "image/png": base64.b64encode(PNG).decode()}
        return {**forms, "application/javascript": "alert(1)", "image/svg+xml": "<svg/>"}, {"isolated": True}
class Wrong:
    def __repr__(self): return "wrong"
    def _repr_html_(self): raise OSError("no")
    def _repr_png_(self): return b"GIF89a"
"""


def test_values_are_shown_in_their_forms(notebook: Notebook) -> None:
    """HTML is rebuilt without scripts, pictures are checked, and no other types come through."""
    notebook.runs(RICH)
    shown = notebook.runs("Rich()")
    assert shown.data("execute_result", "text/html") == "<b>bold</b>"
    assert base64.b64decode(shown.data("execute_result", "image/png")).startswith(b"\x89PNG")
    assert "Rich object" in shown.data("execute_result", "text/plain")
    data = notebook.runs("display(Bundle())").only("display_data")["data"]
    assert isinstance(data, dict)
    assert data.keys() == {"text/plain", "text/html", "image/png"}
    assert (data["text/plain"], data["text/html"]) == ("plain", "<i>x</i>")
    shown = notebook.runs("Wrong()")
    assert shown.only("execute_result")["data"] == {"text/plain": "wrong"}
    assert "Wrong._repr_html_ failed: OSError: no" in shown.text()
    assert "image/png is over the bounds" in shown.text()
    assert notebook.runs("Rich").only("execute_result")["data"].keys() == {"text/plain"}  # type: ignore[attr-defined]


def test_displays_come_in_order_and_may_be_cleared_and_updated(notebook: Notebook) -> None:
    """Texts, values and tables, as the cell makes them."""
    shown = notebook.runs(
        "print('a'); display(1, 'two'); print('b'); clear_output(wait=True)\n"
        "handle = display(3, display_id='my id'); handle.update(4); display(5, display_id=True);"
    )
    kinds = [kind for kind, _ in shown.messages]
    displays = ["display_data", "update_display_data", "display_data"]
    assert kinds == ["stream", "display_data", "display_data", "stream", "clear_output", *displays]
    contents = [content for _, content in shown.messages]
    assert [content["data"] for content in contents[1:3]] == [{"text/plain": "1"}, {"text/plain": "'two'"}]
    assert contents[4] == {"wait": True}
    assert contents[5]["transient"] == contents[6]["transient"] == {"display_id": "my_id"}
    assert contents[7]["transient"] != {}


@pytest.mark.extended
def test_functions_of_ipython_show_values_here(notebook: Notebook) -> None:
    """Where IPython is installed, its module has the functions of the session; figures are displayed, too."""
    shown = notebook.runs(
        "from IPython.display import HTML, display as show, clear_output as clear\n"
        "show(HTML('<b>x</b>')); clear()"
    )
    assert shown.data("display_data", "text/html") == "<b>x</b>"
    assert shown.only("clear_output") == {"wait": False}
    pytest.importorskip("matplotlib")
    shown = notebook.runs("from matplotlib.figure import Figure\nfigure = Figure(); display(figure)")
    assert base64.b64decode(shown.data("display_data", "image/png")).startswith(b"\x89PNG")
    pytest.importorskip("pandas")
    shown = notebook.runs(
        "import pandas as pd\nfor n in (1, 2):\n    print(n); display(pd.DataFrame({'x': [n]}))"
    )
    assert [kind for kind, _ in shown.messages] == ["stream", "display_data"] * 2


def test_displays_have_bounds(notebook: Notebook) -> None:
    """After the last one, values are shown as text, which has a bound of its own; the session goes on."""
    shown = notebook.runs("for n in range(1_200): display(n)")
    assert [kind for kind, _ in shown.messages].count("display_data") == 1_000
    assert "1199" in str(shown.messages[-1][1]["text"])
    shown = notebook.runs(RICH + "display({'text/html': 'x' * 3_000_000, 'text/plain': 'short'}, raw=True)")
    assert shown.only("display_data")["data"] == {"text/plain": "short"}
    assert "text/html is over the bounds" in shown.text()


def test_cells_may_await(notebook: Notebook) -> None:
    """Tasks go on between cells, an interrupt cancels, and errors have the lines of the cell."""
    notebook.runs(
        "import asyncio\nasync def later(x):\n    await asyncio.sleep(0)\n    return x\n"
        "first = await later(1)"
    )
    assert notebook.runs("await later(first + 1)").data("execute_result", "text/plain") == "2"
    notebook.runs("task = asyncio.create_task(later(3)); await asyncio.sleep(0)")
    assert notebook.runs("await task").data("execute_result", "text/plain") == "3"
    assert notebook.runs("asyncio.run(later(4))").data("execute_result", "text/plain") == "4"
    assert "    await later(1 / 0)" in notebook.fails("await later(1 / 0)")
    request = notebook.sends("print('begun'); await asyncio.sleep(600)")
    while notebook.client.get_iopub_msg(timeout=PATIENCE_S)["msg_type"] != "stream":
        pass
    notebook.manager.interrupt_kernel()
    assert notebook.asks(request)["ename"] == "KeyboardInterrupt"
    assert notebook.runs("await later(first)").data("execute_result", "text/plain") == "1"
    assert notebook.asks(notebook.client.is_complete("await later(1)"))["status"] == "complete"


def test_names_are_described(notebook: Notebook) -> None:
    """Shift-Tab at a name or in the brackets of a call, and question marks."""
    notebook.runs("def area(width, height=2):\n    'Return the area.'\n    return width * height")
    for code, place in (("area", 2), ("1 + area(3, (4", 14), ("area(", 5)):
        reply = notebook.asks(notebook.client.inspect(code, cursor_pos=place))
        assert reply["found"], code
        assert "Signature: area(width, height=2)" in str(reply["data"])
        assert "Return the area." in str(reply["data"])
    assert "return width * height" in str(notebook.asks(notebook.client.inspect("area", detail_level=1)))
    assert not notebook.asks(notebook.client.inspect("missing"))["found"]
    for code, text in (("area?", "Signature: area"), ("??area", "return width"), ("none?", "not found")):
        payload = notebook.runs(code).reply["payload"]
        assert isinstance(payload, list)
        assert text in payload[0]["data"]["text/plain"]


def test_errors_have_a_traceback_and_a_remedy(notebook: Notebook) -> None:
    """The traceback has the lines of the cell; what the sandbox refuses is named."""
    assert "    1 / 0" in notebook.fails("1 / 0")
    text = notebook.fails("open('/etc/passwd')")
    assert "The sandbox refused: files of the machine." in text


def test_texts_of_cells_control_no_terminal(notebook: Notebook) -> None:
    """A console shows them, too: control characters are escaped."""
    shown = notebook.runs(r"print('\x1b]0;title\x07\u202e', end='')")
    assert shown.only("stream")["text"] == r"\x1b]0;title\x07\u202e"
    assert "\x1b" not in notebook.fails(r"raise ValueError('\x1b[2J')")


def test_an_interrupt_stops_the_cell_and_keeps_variables(notebook: Notebook) -> None:
    """Jupyter's interrupt is the KeyboardInterrupt of the cell."""
    notebook.runs("kept = 1")
    request = notebook.sends("print('begun')\nwhile True: pass")
    while notebook.client.get_iopub_msg(timeout=PATIENCE_S)["msg_type"] != "stream":
        pass  # output comes while the cell runs
    notebook.manager.interrupt_kernel()
    assert notebook.asks(request)["ename"] == "KeyboardInterrupt"
    assert notebook.runs("kept").data("execute_result", "text/plain") == "1"


def test_a_session_that_ends_is_replaced(notebook: Notebook) -> None:
    """The cell shows the reason, and the next one begins afresh and says so."""
    notebook.runs("lost = 1")
    assert "exit status 3" in notebook.fails("import os; os._exit(3)")
    shown = notebook.runs("'lost' in globals()")
    assert "fresh session" in str(shown.only("stream")["text"])
    assert shown.data("execute_result", "text/plain") == "False"


def test_names_are_completed_in_the_session(notebook: Notebook) -> None:
    """Completion replaces the dotted name before the cursor; typed code is complete or goes on."""
    notebook.runs("import math")
    reply = notebook.asks(notebook.client.complete("1 + math.sq * 2", cursor_pos=11))
    assert (reply["matches"], reply["cursor_start"], reply["cursor_end"]) == (["math.sqrt"], 4, 11)
    assert notebook.asks(notebook.client.complete("f().sq"))["matches"] == []
    reply = notebook.asks(notebook.client.is_complete("for x in y:"))
    assert (reply["status"], reply["indent"]) == ("incomplete", "    ")


def test_former_cells_are_in_the_history(notebook: Notebook) -> None:
    """With the texts of their values, if a frontend asks for them; silent cells are not."""
    notebook.runs("former = 7\nformer")
    notebook.asks(notebook.client.execute("silent = 1", silent=True))
    reply = notebook.asks(notebook.client.history(hist_access_type="tail", n=1, output=True))
    assert isinstance(reply["history"], list)
    session, number, cell = reply["history"][-1]
    assert cell == ["former = 7\nformer", "7"]
    reply = notebook.asks(
        notebook.client.history(
            hist_access_type="range", session=session, start=number, stop=number + 1, output=False
        )
    )
    assert reply["history"] == [[session, number, "former = 7\nformer"]]
    assert not notebook.asks(notebook.client.history(hist_access_type="search", pattern="silent*"))["history"]


def test_a_restart_is_a_fresh_session(notebook: Notebook) -> None:
    """The variables of the former kernel are gone."""
    notebook.runs("before = 1")
    notebook.manager.restart_kernel(now=True)
    notebook.client.wait_for_ready(timeout=PATIENCE_S)
    assert "NameError" in notebook.fails("before")


@pytest.mark.extended
def test_kernels_are_listed_and_removed(person: Person) -> None:
    """``ls`` and ``remove`` know the kernels of dios alone, and ``install`` replaces no other one."""
    options = "--memory 1GiB --snapshot dios://tries/state --isolation gvisor --display-name Mine"
    installed = json.loads(person.types(f"dios kernel install --user {options} --json").stdout)
    folder = person.home / ".local/share/jupyter/kernels/dios-sandbox"
    assert installed == {"name": "dios-sandbox", "display_name": "Mine", "folder": str(folder)}
    kept = (folder / "kernel.json").read_text()
    assert all(value in kept for value in ("1GiB", "dios://tries/state", "gvisor"))
    other = folder.with_name("other")
    other.mkdir()
    (other / "kernel.json").write_text('{"argv": ["other"], "display_name": "Other", "language": "r"}')
    assert json.loads(person.types("dios kernel ls --json").stdout) == [installed]
    assert "Mine" in person.types("dios kernel ls").stdout
    assert "another kernel" in person.types("dios kernel install --user --name other", status=1).stderr
    assert "no kernel 'other' of dios" in person.types("dios kernel remove other", status=1).stderr
    assert "removed" in person.types("dios kernel remove").stderr
    assert not folder.exists()
    assert other.exists()
    assert json.loads(person.types("dios kernel ls --json").stdout) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--user --prefix env", "not both"),
        ("--memory much", "memory must be"),
        ("--timeout 0", "timeout must be"),
        ("--input missing.csv", "missing.csv"),
        ("--name a/b --prefix env", "cannot install"),
    ],
)
def test_wrong_options_are_refused_at_once(person: Person, options: str, said: str) -> None:
    """A notebook would show the mistake much later."""
    assert said in person.types(f"dios kernel install {options}", status=1).stderr

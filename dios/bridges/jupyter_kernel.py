"""The process of the Jupyter kernel "DIOS sandbox", whose cells run in a sandbox.

``dios.bridges.jupyter_specs`` makes Jupyter start it, with its options as JSON. A restart of the kernel is a
restart of this process, and so a fresh session. Interrupts come as messages, in another thread.
"""

from __future__ import annotations

import argparse
import ast
import base64
import codeop
import platform
import re
import warnings
from collections.abc import Collection, Mapping
from typing import ClassVar, Final, Protocol, cast

import msgspec
from ipykernel.kernelapp import IPKernelApp
from ipykernel.kernelbase import Kernel

from dios.bridges.jupyter_specs import KernelOptions
from dios.bridges.kernel_history import SESSION, Cell, CellHistory
from dios.client.plain_text import plain_lines
from dios.errors import DiosError
from dios.installation import version
from dios.lib.sandbox.async_sandbox import Sandbox
from dios.lib.sandbox.bounds import SandboxBounds
from dios.lib.sandbox.errors import SandboxCodeError
from dios.lib.sandbox.network.grant import headers_from_variables
from dios.lib.sandbox.result import SandboxDisplay, SandboxResult, SandboxTable

Content = dict[str, object]

_NAME_AT_END: Final = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*\.?$")
_NAME: Final = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_QUESTION: Final = re.compile(rf"\s*(?:(\?\??)\s*({_NAME.pattern})|({_NAME.pattern})\s*(\?\??))\s*")
"""``name?``, ``?name``, and with two marks for the source."""
_DESCRIPTION_S: Final = 5.0
"""The seconds for the description of a name, which may be the work of its code."""
_ENDED: Final = "SandboxEnded"


class _Kernel(Protocol):
    """A kernel of Jupyter, as far as it has no types."""

    def send_response(self, stream: object, msg_or_type: str, content: Mapping[str, object]) -> object:
        """Send a message about the present cell."""


class _Session(Protocol):
    """The session of Jupyter's protocol, the same."""

    def send(
        self, stream: object, msg_or_type: str, content: Content, parent: object, ident: object
    ) -> object:
        """Send a reply."""


class SandboxKernel(Kernel):
    """A kernel with one sandbox, which is opened by the first cell."""

    implementation = "dios"
    implementation_version = version()
    banner = "Python in a DIOS sandbox: cells reach inputs and the installed packages, and nothing else."
    language_info: Content = {  # noqa: RUF012 - as Jupyter's kernels have it
        "name": "python",
        "version": platform.python_version(),
        "mimetype": "text/x-python",
        "file_extension": ".py",
        "pygments_lexer": "ipython3",
        "codemirror_mode": {"name": "ipython", "version": 3},
    }
    options: ClassVar[KernelOptions] = KernelOptions()

    _box: Sandbox | None = None
    _runs = False
    _value: SandboxDisplay | None = None
    """The value of the present cell, if it has other forms than text."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]  # Jupyter's kernels have no types
        self._history: Final = CellHistory()

    # -- cells ------------------------------------------------------------------------------------
    async def do_execute(
        self,
        code: str,
        silent: bool,  # noqa: FBT001 - as Jupyter's kernels have it
        store_history: bool = True,  # noqa: FBT001, FBT002 - the same
        user_expressions: Content | None = None,  # noqa: ARG002 - the same
        allow_stdin: bool = False,  # noqa: ARG002, FBT001, FBT002 - the same
        *,
        cell_meta: Content | None = None,  # noqa: ARG002 - the same
        cell_id: str | None = None,  # noqa: ARG002 - the same
    ) -> Content:
        """Run a cell in the sandbox, and show its result."""
        self._runs, self._value = True, None
        try:
            box = await self._opened()
            question = _QUESTION.fullmatch(code)
            if question is not None:
                return await self._answered(box, question)
            result = await box.run(
                code,
                on_output=None if silent else self._print,
                on_display=None if silent else self._display,
            )
        except (DiosError, OSError) as error:
            await self._forget()
            text = error.message if isinstance(error, DiosError) else str(error)
            return self._failed(type(error).__name__, text, f"{type(error).__name__}: {text}", silent=silent)
        finally:
            self._runs = False
        if not silent:
            self._show(result)
            if store_history:
                output = None if result.value_repr is None else shown(result.value_repr)
                self._history.add(Cell(self.execution_count, code, output))
        failure = result.error
        if failure is None:
            return self._done([])
        if failure.ended:
            message = f"the session ended: {box.ended}. Its variables are lost; the next cell starts afresh"
            return self._failed(_ENDED, message, f"{_ENDED}: {message}", silent=silent)
        return self._failed(failure.type, failure.message, str(failure), silent=silent)

    async def _answered(self, box: Sandbox, question: re.Match[str]) -> Content:
        """Return the reply to a cell that asks for the description of a name."""
        before, first, second, after = question.groups()
        name, marks = first or second, before or after
        try:
            text = await box.describe(name, source=len(marks) > 1, timeout=_DESCRIPTION_S)
        except SandboxCodeError:
            text = f"Object `{name}` not found."
        return self._done([{"source": "page", "data": {"text/plain": shown(text)}, "start": 0}])

    def _done(self, payload: list[Content]) -> Content:
        done: Content = {"status": "ok", "execution_count": self.execution_count}
        return done | {"payload": payload, "user_expressions": {}}

    async def _opened(self) -> Sandbox:
        if self._box is None:
            given = self.options
            box = Sandbox(
                node=given.node,
                template=given.template,
                packages=given.packages,
                wheels=given.wheels,
                image=given.image,
                snapshot=given.snapshot,
                isolation=given.isolation,
                inputs=given.inputs,
                memory=given.memory,
                cpu_seconds=given.cpu_seconds,
                timeout=given.timeout,
                bounds=SandboxBounds(**given.bounds),
                network=given.network,
                network_ca=given.network_ca,
                network_headers=headers_from_variables(given.network_headers),
            )
            self._box = await box.__aenter__()
        elif self._box.ended:
            await self._box.reset()
            self._print("stderr", "[dios] this is a fresh session, without variables\n")
        return self._box

    async def _forget(self) -> None:
        """Close a sandbox that cannot go on, because its node is gone for example."""
        box, self._box = self._box, None
        if box is not None:
            await box.close()

    def _show(self, result: SandboxResult) -> None:
        for table in result.tables:
            if table is not result.value_table:
                self._publish("display_data", _table_data(table))
        if result.value_repr is not None:
            data = {"text/plain": shown(result.value_repr)}
            if result.value_table is not None:
                data = _table_data(result.value_table) | data
            elif self._value is not None:
                data |= _forms(self._value)
            self._publish("execute_result", data, execution_count=self.execution_count)
        for figure in result.figures:
            self._publish("display_data", {"image/png": base64.b64encode(figure).decode()})

    def _failed(self, kind: str, message: str, traceback: str, *, silent: bool) -> Content:
        error: Content = {
            "ename": shown(kind),
            "evalue": shown(message),
            "traceback": shown(traceback).splitlines(),
        }
        if not silent:
            self._respond("error", error)
        return {"status": "error", "execution_count": self.execution_count, **error}

    def _print(self, stream: str, text: str) -> None:
        self._respond("stream", {"name": stream, "text": shown(text)})

    def _display(self, display: SandboxDisplay) -> None:
        if display.clear:
            self._respond("clear_output", {"wait": display.wait})
        elif display.is_value:
            self._value = display
        else:
            data = {"text/plain": shown(display.text)}
            data |= _forms(display) if display.table is None else _table_data(display.table)
            kind = "update_display_data" if display.update else "display_data"
            self._publish(kind, data, transient={"display_id": display.id} if display.id else {})

    def _publish(self, kind: str, data: dict[str, str], **others: object) -> None:
        self._respond(kind, {"data": data, "metadata": {}, **others})

    def _respond(self, kind: str, content: Mapping[str, object]) -> None:
        cast("_Kernel", self).send_response(self.iopub_socket, kind, content)

    # -- other requests ---------------------------------------------------------------------------
    async def interrupt_request(self, stream: object, ident: object, parent: object) -> None:
        """Interrupt the cell that runs. It is called in another thread."""
        box = self._box
        if box is not None:
            box.interrupt()
        cast("_Session", self.session).send(stream, "interrupt_reply", {"status": "ok"}, parent, ident)

    def pre_handler_hook(self) -> None:
        """Leave signals ignored: an interrupt is a message."""

    def post_handler_hook(self) -> None:
        """Change no signals."""

    async def do_complete(self, code: str, cursor_pos: int) -> Content:
        """Complete the dotted name before the cursor, with names of the session."""
        names: list[str] = []
        match = _NAME_AT_END.search(code[:cursor_pos])
        if match is not None and self._box is not None and not self._runs:
            try:
                names = await self._box.complete(match[0])
            except DiosError:
                names = []  # it is no name there, or the session has ended
        start = match.start() if match is not None and names else cursor_pos
        return {
            "status": "ok",
            "matches": names,
            "cursor_start": start,
            "cursor_end": cursor_pos,
            "metadata": {},
        }

    async def do_inspect(
        self,
        code: str,
        cursor_pos: int,
        detail_level: int = 0,
        omit_sections: Collection[str] = (),  # noqa: ARG002 - as Jupyter's kernels have it
    ) -> Content:
        """Describe the name at the cursor, or that of the function in whose call it is."""
        name, text = name_at(code, cursor_pos), ""
        if name and self._box is not None and not self._runs:
            try:
                text = await self._box.describe(name, source=detail_level > 0, timeout=_DESCRIPTION_S)
            except DiosError:
                text = ""  # it is no name there, or the session has ended
        data = {"text/plain": shown(text)} if text else {}
        return {"status": "ok", "found": bool(text), "data": data, "metadata": {}}

    async def do_history(
        self,
        hist_access_type: str,
        output: bool,  # noqa: FBT001 - as Jupyter's kernels have it
        raw: bool,  # noqa: ARG002, FBT001 - the same
        session: int | None = None,
        start: int | None = None,
        stop: int | None = None,
        n: int | None = None,
        pattern: str | None = None,
        unique: bool = False,  # noqa: FBT001, FBT002 - the same
    ) -> Content:
        """Return former cells of this kernel, with the texts of their values if ``output`` is True."""
        if hist_access_type == "range":
            cells = self._history.in_range(session or 0, start, stop)
        elif hist_access_type == "search":
            cells = self._history.search(pattern, n, unique=unique)
        else:
            cells = self._history.tail(n)
        rows = [(SESSION, number, (code, text) if output else code) for number, code, text in cells]
        return {"status": "ok", "history": rows}

    async def do_is_complete(self, code: str) -> Content:
        """Return the state of typed code, for frontends with a prompt."""
        return is_complete(code)

    @property
    def kernel_info(self) -> Content:
        """Return the description of the kernel: no debugger, and one shell."""
        return {**super().kernel_info, "supported_features": []}

    async def create_subshell_request(self, socket: object, ident: object, parent: object) -> None:
        """Refuse: the cells of a session run one after the other."""
        content: Content = {"status": "error", "ename": "NotSupported", "evalue": "this kernel has one shell"}
        cast("_Session", self.session).send(socket, "create_subshell_reply", content, parent, ident)


def is_complete(code: str) -> Content:
    """Return the state of typed code: complete, invalid, or incomplete with an indentation."""
    last = code.rpartition("\n")[2]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiler = codeop.CommandCompiler()
            compiler.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            compiled = compiler(code, "<typed>", "exec")
    except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):
        return {"status": "invalid"}
    # A block goes on until an empty line.
    if compiled is not None and not last.startswith((" ", "\t")):
        return {"status": "complete"}
    indent = last[: len(last) - len(last.lstrip())]
    return {"status": "incomplete", "indent": indent + "    " * last.rstrip().endswith(":")}


def name_at(code: str, place: int) -> str:
    """Return the dotted name at a place in code, or before the bracket that is open there; or nothing."""
    for match in _NAME.finditer(code):
        if match.start() <= place <= match.end():
            end = code.find(".", place, match.end())
            return code[match.start() : match.end() if end < 0 else end]
    depth = 0
    for index in range(min(place, len(code)) - 1, -1, -1):
        depth += (code[index] in ")]}") - (code[index] in "([{")
        if depth < 0:
            before = _NAME_AT_END.search(code[:index].rstrip())
            if before is not None and code[index] == "(":
                return before[0].rstrip(".")
            depth = 0
    return ""


def _forms(display: SandboxDisplay) -> dict[str, str]:
    """Return the forms of a value other than text, by their types."""
    pictures = {"image/png": display.png, "image/jpeg": display.jpeg}
    forms = {kind: base64.b64encode(data).decode() for kind, data in pictures.items() if data}
    return forms | ({"text/html": display.html} if display.html else {})


def shown(text: str) -> str:
    """Return text of a session for a notebook or a terminal: without letters that control what displays it.

    Progress bars return to the begin of their line, and nothing else changes what was shown.
    """
    return "\r".join(map(plain_lines, text.split("\r")))


def _table_data(table: SandboxTable) -> dict[str, str]:
    title = f"a table of {table.row_count} rows and {table.column_count} columns"
    return {"text/plain": title, "text/html": table._repr_html_()}


class _KernelApp(IPKernelApp):
    def init_path(self) -> None:
        """Leave the folder of the notebook out of the path: its files must not be loaded here."""


def main() -> None:
    """Serve one kernel, as Jupyter starts it."""
    parser = argparse.ArgumentParser(prog="dios.bridges.jupyter_kernel", allow_abbrev=False)
    parser.add_argument("-f", dest="connection_file", required=True)
    parser.add_argument("--options", type=lambda text: msgspec.json.decode(text, type=KernelOptions))
    given = parser.parse_args()
    SandboxKernel.options = given.options or KernelOptions()
    _KernelApp.launch_instance(argv=[], connection_file=given.connection_file, kernel_class=SandboxKernel)


if __name__ == "__main__":
    main()

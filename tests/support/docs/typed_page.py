"""A document as a reader types it, from the first block to the last one.

In such a document a block ``python`` begins with a comment that names its file, a block ``sh`` is typed, and
a block ``text`` directly below is the output of the commands, where "…" stands for anything. Blocks of other
languages are shown and not typed.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import signal
import subprocess
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path
from typing import NamedTuple

from tests.support.node.command_user import DEADLINE_SECONDS, Person

_BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$(?:\n+```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (\S+\.py)\n")
_ADDRESS = re.compile(r"(http://\S+)/enter#token=(\S+)")
SERVER = "dios ui"


class Block(NamedTuple):
    """A block of a document, and the output that stands below it."""

    language: str
    text: str
    shown: str | None


def blocks(document: str) -> list[Block]:
    """Return the blocks of a document that a reader types or writes into files."""
    return [Block(language, text, shown or None) for language, text, shown in _BLOCK.findall(document)]


def type_page(reader: Person, document: str) -> list[str]:
    """Type a document in its order; each command must succeed and print what is shown. Return the outputs."""
    outputs = []
    for block in blocks(document):
        if block.language == "python":
            name = _FILE.match(block.text)
            assert name is not None, f"a program without the name of its file:\n{block.text}"
            reader.writes(name[1], block.text)
        elif block.text.startswith(SERVER):
            outputs.append(dashboard_page(reader, block.text))
        else:
            done = reader.pastes(block.text)
            assert done.returncode == 0, f"{block.text}\n{done.stdout}{done.stderr}"
            assert block.shown is None or _pattern(block.shown).fullmatch(done.stdout), (
                f"{block.text}\nshown:\n{block.shown}\nprinted:\n{done.stdout}{done.stderr}"
            )
            outputs.append(done.stdout)
    return outputs


def _pattern(shown: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, shown.split("…"))), re.DOTALL)


def dashboard_page(reader: Person, command: str) -> str:
    """Start ``dios ui``, enter it at the printed address as a browser does, and end it with Ctrl-C."""
    words = shlex.split(command, comments=True)
    server = reader.starts(" ".join(words))
    try:
        assert server.stderr is not None
        said = ""
        while (address := _ADDRESS.search(said)) is None:
            line = server.stderr.readline()
            assert line, said
            said += line
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        place, token = address.groups()
        # A page of another origin may not send the token, so a browser names its own.
        entry = urllib.request.Request(f"{place}/enter", token.encode(), {"Origin": place})  # noqa: S310 - http
        opener.open(entry, timeout=DEADLINE_SECONDS).close()
        with opener.open(f"{place}/", timeout=DEADLINE_SECONDS) as page:
            return str(page.read().decode())
    finally:
        server.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.communicate(timeout=DEADLINE_SECONDS)
        server.kill()


def processes_in(folder: Path) -> list[str]:
    """Return the command lines of running processes that name a folder or work in it."""
    running = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(folder) in line or (process / "cwd").readlink().is_relative_to(folder):
                running.append(line)
    return running

"""Completion of names at the prompt of ``dios sandbox shell``, which asks the session for them.

The session is not trusted: it answers with text alone, of a bounded number of names, within a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from dios.client.plain_text import plain
from dios.errors import DiosError
from dios.lib.sandbox.sandbox import Sandbox

COMPLETION_S: Final = 1.0
"""The time in which a session answers; then it is interrupted, and nothing is completed."""
_INDENT: Final = "    "
_DELIMITERS: Final = " \t\n`~!@#$%^&*()-=+[{]}\\|;:'\",<>/?"
"""The characters that end a name; a dot is part of one."""


class NameCompleter:
    """Completes what is typed for the session that ``present`` returns, and the shell's own commands."""

    def __init__(self, present: Callable[[], Sandbox], commands: Iterable[str]) -> None:
        self._present: Final = present
        self._commands: Final = sorted(commands)
        self._found: list[str] = []

    def completions(self, line: str, text: str) -> list[str]:
        """Return what the last word of a line may be, in full; nothing if the session has no answer."""
        if line.lstrip().startswith("%"):
            return [command[1:] for command in self._commands if command[1:].startswith(text)]
        try:
            names = self._present().complete(text, timeout=COMPLETION_S)
        except DiosError:
            return []
        return [name for name in names if plain(name) == name]

    def install(self) -> None:
        """Let the lines that ``input`` reads be edited, and be completed with the Tab key."""
        try:
            import readline  # noqa: PLC0415 - some Pythons are built without it
        except ImportError:
            return

        def complete(text: str, state: int) -> str | None:
            if not readline.get_line_buffer()[: readline.get_endidx()].strip():
                if not state:
                    readline.insert_text(_INDENT)
                    readline.redisplay()
                return None
            if not state:
                self._found = self.completions(readline.get_line_buffer(), text)
            return self._found[state] if state < len(self._found) else None

        readline.set_completer_delims(_DELIMITERS)
        readline.set_completer(complete)
        is_editline = "libedit" in (readline.__doc__ or "")
        readline.parse_and_bind("bind ^I rl_complete" if is_editline else "tab: complete")

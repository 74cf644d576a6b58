"""``dios shell``: the dizibox of the thesis, a small interactive shell over the object space (§4.10.3).

It holds one session while it runs, so that its references can be read, written, copied and dropped by their
labels. Other commands are passed to ``dios``. Scripts should use the commands with ``--json``.
"""

from __future__ import annotations

import cmd
import contextlib
import os
import readline
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import typer

from dios.cli.common.application import CommandApplication
from dios.cli.common.context import CommandContext, opened
from dios.cli.common.output import report, say, size_text, table
from dios.cli.common.results import NODE_OPTION
from dios.client.locate import config_directory
from dios.client.ops.attributes import rights_text
from dios.client.sync.node import Reference
from dios.errors import DiosError, InvalidError
from dios.limits import SHELL_HISTORY_MAX
from dios.trusted_files import weakness
from dios.wire.nametext import PREFIX, fingerprint, format_name
from dios.wire.types import ObjectType, Semantics

SHOWN_BYTES: Final = 1024
DELEGATED: Final = (
    "put",
    "get",
    "ls",
    "stat",
    "rm",
    "run",
    "ps",
    "logs",
    "pause",
    "resume",
    "kill",
    "group",
    "audit",
    "limits",
    "describe",
    "node",
    "replicate",
)

app: Final = CommandApplication()


def shown_bytes(data: bytes) -> str:
    """Return bytes for a terminal: text if printable, else hex; never control sequences."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\0"
    if all(letter.isprintable() or letter in "\n\t" for letter in text):
        return text
    lines = (data[start : start + 16] for start in range(0, len(data), 16))
    return "\n".join(f"{number * 16:08x}  {line.hex(' ')}" for number, line in enumerate(lines))


class Shell(cmd.Cmd):
    """One session with a prompt. References have the labels r1, r2 and so on."""

    prompt = "dios> "
    intro = "A session of your own on the node. `help` lists the commands, Ctrl-D ends it."
    doc_header = "Commands (help COMMAND says more):"

    def __init__(self, place: CommandContext, run_command: Callable[[list[str]], None]) -> None:
        super().__init__()
        self._place: Final = place
        self._run_command: Final = run_command
        self._held: Final[dict[str, Reference]] = {}
        self._count = 0

    # -- how lines are taken ------------------------------------------------------------------------
    def onecmd(self, line: str) -> bool:
        """Run one line; report an expected failure and continue."""
        try:
            return bool(super().onecmd(line))
        except DiosError as error:
            report(error, as_json=False, doing=line.split(maxsplit=1)[0])
        except ValueError as error:
            say(f"cannot parse the line: {error}")
        except OSError as error:
            say(f"{error.filename or ''}: {error.strerror}")
        except KeyboardInterrupt:
            say("interrupted")
        return False

    def emptyline(self) -> bool:
        """Do nothing, instead of repeating the last command."""
        return False

    def default(self, line: str) -> None:
        """Pass a command of ``dios`` on; report any other word."""
        word, *rest = shlex.split(line)
        if word in DELEGATED:
            self._run_command([word, *rest])
        else:
            say(f"there is no command {word!r}; `help` lists the commands")

    def completenames(self, text: str, *ignored: object) -> list[str]:
        """Return matching commands of the shell and of ``dios``."""
        del ignored
        return [*super().completenames(text), *(word for word in DELEGATED if word.startswith(text))]

    def get_names(self) -> list[str]:
        """Return the names for help, without Ctrl-D."""
        return [name for name in super().get_names() if name != "do_EOF"]

    def completedefault(self, *ignored: object) -> list[str]:
        """Return matching labels of references."""
        text = str(ignored[0]) if ignored else ""
        return [label for label in self._held if label.startswith(text)]

    def do_help(self, arg: str) -> None:
        """``help [COMMAND]``: list the commands, or explain one."""
        if arg in DELEGATED:
            self._run_command([arg, "--help"])
            return
        explained = getattr(self, f"do_{arg}", None) if arg else None
        if explained is not None and explained.__doc__:
            say(explained.__doc__.replace("``", ""))
            return
        super().do_help(arg)
        if not arg:
            say("Commands of dios itself: " + " ".join(DELEGATED))

    # -- references ---------------------------------------------------------------------------------
    def _hold(self, reference: Reference) -> str:
        self._count += 1
        label = f"r{self._count}"
        self._held[label] = reference
        say(f"{label}: {reference.type.name} {reference.fingerprint}, {size_text(reference.size)}")
        return label

    def _reference(self, label: str) -> Reference:
        reference = self._held.get(label)
        if reference is None:
            raise InvalidError(f"there is no reference {label!r}; `refs` lists the references")
        return reference

    def do_groups(self, arg: str) -> None:
        """``groups``: list the groups of your keyring that this node knows."""
        del arg
        known = self._place.reachable_groups()
        table(
            ("GROUP", "FINGERPRINT"),
            [(alias, fingerprint(self._place.keyring.groups[alias])) for alias in known],
        )

    def do_newgroup(self, arg: str) -> None:
        """``newgroup ALIAS``: make a group and keep its name in your keyring."""
        (alias,) = _words(arg, 1, 1)
        group = self._place.make_group(alias)
        say(f"group {alias}: {group.fingerprint}")

    def do_create(self, arg: str) -> None:
        """``create [TYPE [GROUP...]]``: create an object (default: DURABLE_BLOB) and print its name."""
        words = _words(arg, 0, 33)
        kind = words[0].upper() if words else "DURABLE_BLOB"
        if kind not in ObjectType.__members__:
            raise InvalidError(f"there is no type {kind}; known: {', '.join(ObjectType.__members__)}")
        groups = [self._place.group(alias) for alias in words[1:]]
        created = self._place.node.create(ObjectType[kind], groups=groups)
        self._hold(created)
        if created.name is not None:
            say(f"name: {format_name(created.name)}")

    def do_lookup(self, arg: str) -> None:
        """``lookup NAME [GROUP]``: get references to all objects of that name, in one or all groups."""
        words = _words(arg, 1, 2)
        name, _ = self._place.find(words[0])
        group = self._place.group(words[1]) if len(words) > 1 else None
        references = self._place.node.lookup(name, group=group)
        for reference in references:
            self._hold(reference)
        if not references:
            say("nothing found: no such object, or you are in none of its groups")

    def do_refs(self, arg: str) -> None:
        """``refs``: list your references with their present attributes.

        v_r and v_w count committed reads and writes, a_r and a_w the active ones.
        """
        del arg
        table(
            ("REF", "TYPE", "FINGERPRINT", "SIZE", "v_r", "v_w", "a_r", "a_w", "RIGHTS"),
            [
                (
                    label,
                    held.type.name + (" (zombie)" if held.zombie else ""),
                    held.fingerprint,
                    str(held.size),
                    *(str(count) for count in (held.v_r, held.v_w, held.a_r, held.a_w)),
                    rights_text(held.permissions),
                )
                for label, held in self._held.items()
            ],
            right=("SIZE", "v_r", "v_w", "a_r", "a_w"),
        )

    def do_read(self, arg: str) -> None:
        """``read REF [SIZE [OFFSET]]``: show its bytes as text or hex; by default the first 1024."""
        words = _words(arg, 1, 3)
        size = _number(words[1]) if len(words) > 1 else SHOWN_BYTES
        offset = _number(words[2]) if len(words) > 2 else 0
        sys.stdout.write(
            shown_bytes(self._reference(words[0]).read_bytes(size, offset, Semantics.ANY)) + "\n"
        )

    def do_write(self, arg: str) -> None:
        """``write REF TEXT``: replace its bytes by TEXT."""
        label, _, text = arg.strip().partition(" ")
        version = self._reference(label).write_bytes(text.encode(), 0, Semantics.EXCL)
        say(f"v_w {version}")

    def do_copy(self, arg: str) -> None:
        """``copy REF``: make a second reference to the same object."""
        (label,) = _words(arg, 1, 1)
        self._hold(self._reference(label).copy())

    def do_drop(self, arg: str) -> None:
        """``drop REF...``: drop references; the objects live as long as others hold them."""
        for label in _words(arg, 1, 256):
            self._reference(label).close()
            del self._held[label]

    def do_destroy(self, arg: str) -> None:
        """``destroy REF...``: destroy the objects, for all users."""
        for label in _words(arg, 1, 256):
            self._reference(label).destroy()
            del self._held[label]

    def do_select(self, arg: str) -> None:
        """``select SECONDS REF...``: wait until one of the references is ready for reading."""
        seconds, *labels = _words(arg, 2, 256)
        ready = self._place.node.select(
            [self._reference(label) for label in labels], mode="read", timeout=_seconds(seconds)
        )
        say(next((label for label in labels if self._held[label] is ready), "none became ready in time"))

    def do_whoami(self, arg: str) -> None:
        """``whoami``: show this session's own task."""
        del arg
        say(f"task {fingerprint(self._place.node.name)}, {self._place.node.brand.name.lower()}")

    def do_exit(self, arg: str) -> bool:
        """``exit``: end the session (Ctrl-D does too)."""
        del arg
        return True

    do_quit = do_exit

    def do_EOF(self, arg: str) -> bool:  # noqa: N802 - cmd.Cmd calls it so
        """``Ctrl-D``: end the session."""
        del arg
        sys.stdout.write("\n")
        return True


def _words(arg: str, least: int, most: int) -> list[str]:
    words = shlex.split(arg)
    if not least <= len(words) <= most:
        raise InvalidError(f"takes {least}{f' to {most}' if most > least else ''} words; see `help COMMAND`")
    return words


def _number(text: str) -> int:
    if not text.isdecimal():
        raise InvalidError(f"{text!r} is not a number of bytes")
    return int(text)


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidError(f"{text!r} is not a number of seconds") from None


def history_path() -> Path:
    """Return the path of the shell's history, which only its owner can read."""
    return config_directory() / "shell_history"


def _take_lines(interpreter: Shell) -> None:
    """Run lines until one ends the session; Ctrl-C drops the line being typed, as in other shells."""
    while True:
        try:
            interpreter.cmdloop()
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
            interpreter.intro = ""
            sys.stdout.write("\n")
        else:
            return


@contextlib.contextmanager
def _history() -> Iterator[None]:
    path = history_path()
    with contextlib.suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(SHELL_HISTORY_MAX)
    try:
        yield
    finally:
        _keep_history(path)


def _keep_history(path: Path) -> None:
    # Names are secret, so lines with names are not stored.
    for position in range(readline.get_current_history_length(), 0, -1):
        if PREFIX in (readline.get_history_item(position) or "").lower():
            readline.remove_history_item(position - 1)
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if weakness(path):
            return
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        readline.write_history_file(path)


def _found_command(command: object, words: list[str]) -> tuple[int, bool]:
    """Return the number of words that name the command, and True if it has the option ``--node``."""
    length = 0
    for word in words:
        below = getattr(command, "commands", {})
        if word not in below:
            break
        command, length = below[word], length + 1
    return length, any("--node" in option.opts for option in getattr(command, "params", ()))


@app.command(
    epilog="\b\nExamples:\n  dios shell\n  dios> create durable_blob analytics\n  dios> write r1 hello\n"
    "  dios> read r1\n  dios> ps\n\n  echo 'groups' | dios shell"
)
def shell(context: typer.Context, *, node: str | None = NODE_OPTION) -> None:
    """A prompt for names, groups, references and tasks.

    It is one session: the objects that it creates and looks up stay in its reference table until it ends.
    """
    root = context.find_root().command

    def run_command(words: list[str]) -> None:
        at, takes_node = _found_command(root, words)
        chosen = ["--node", node] if node and takes_node and "--help" not in words else []
        # Standalone, so that it reports its own errors; only its exit is suppressed.
        with contextlib.suppress(SystemExit):
            root.main([*words[:at], *chosen, *words[at:]], prog_name="dios")

    with opened(node) as place, _history():
        interpreter = Shell(place, run_command)
        if not sys.stdin.isatty():
            interpreter.prompt, interpreter.intro, interpreter.use_rawinput = "", "", False
        _take_lines(interpreter)

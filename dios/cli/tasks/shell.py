"""``dios shell``: the dizibox of the thesis, a small interactive shell over the object space (§4.10.3).

Not for: scripts; every command outside of it takes ``--json``. It holds one session for as long as it
runs, so the references it shows are its own: they can be read, written, copied and dropped by number. What
it does not know itself is given to ``dios``.
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

from dios.cli.common.context import Place, opened
from dios.cli.common.output import NodeOption, report, reporting, say, size_text, table
from dios.client.locate import config_directory
from dios.client.ops.attributes import rights_text
from dios.client.sync.node import Reference
from dios.errors import DiosError, InvalidError
from dios.limits import SHELL_HISTORY_MAX
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

app: Final = typer.Typer(rich_markup_mode=None)


def shown_bytes(data: bytes) -> str:
    """Bytes for a terminal: text where it is text, hex where it is not, never a control sequence."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\0"
    if all(letter.isprintable() or letter in "\n\t" for letter in text):
        return text
    lines = (data[start : start + 16] for start in range(0, len(data), 16))
    return "\n".join(f"{number * 16:08x}  {line.hex(' ')}" for number, line in enumerate(lines))


class Shell(cmd.Cmd):
    """One session at a prompt. References are called by the labels it gives them: r1, r2 and so on."""

    prompt = "dios> "
    intro = "A session of your own on the node. `help` lists the commands, Ctrl-D ends it."
    doc_header = "Commands (help COMMAND says more):"

    def __init__(self, place: Place, run_command: Callable[[list[str]], None]) -> None:
        super().__init__()
        self._place: Final = place
        self._run_command: Final = run_command
        self._held: Final[dict[str, Reference]] = {}
        self._count = 0

    # -- how lines are taken ------------------------------------------------------------------------
    def onecmd(self, line: str) -> bool:
        """Run one line; an expected failure is told and the shell goes on."""
        try:
            return bool(super().onecmd(line))
        except DiosError as error:
            report(error, as_json=False, doing=line.split(maxsplit=1)[0])
        except ValueError as error:
            say(f"the line is not understood: {error}")
        except OSError as error:
            say(f"{error.filename or ''}: {error.strerror}")
        except KeyboardInterrupt:
            say("interrupted")
        return False

    def emptyline(self) -> bool:
        """Nothing, rather than the last command once more."""
        return False

    def default(self, line: str) -> None:
        """What ``dios`` knows is done by it; anything else is told."""
        word, *rest = shlex.split(line)
        if word in DELEGATED:
            self._run_command([word, *rest])
        else:
            say(f"there is no command {word!r}; `help` lists what there is")

    def completenames(self, text: str, *ignored: object) -> list[str]:
        """Our own commands and those of ``dios``."""
        del ignored
        return [*super().completenames(text), *(word for word in DELEGATED if word.startswith(text))]

    def get_names(self) -> list[str]:
        """What help lists: Ctrl-D is no word to type."""
        return [name for name in super().get_names() if name != "do_EOF"]

    def completedefault(self, *ignored: object) -> list[str]:
        """Labels of references."""
        text = str(ignored[0]) if ignored else ""
        return [label for label in self._held if label.startswith(text)]

    def do_help(self, arg: str) -> None:
        """``help [COMMAND]``: this list, or what a command does."""
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
        found = self._held.get(label)
        if found is None:
            raise InvalidError(f"no reference is called {label!r}; `refs` lists those held")
        return found

    def do_groups(self, arg: str) -> None:
        """``groups``: the groups of your keyring that this node knows."""
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
        """``create [TYPE [GROUP...]]``: a new object, DURABLE_BLOB unless you say; prints its name."""
        words = _words(arg, 0, 33)
        kind = words[0].upper() if words else "DURABLE_BLOB"
        if kind not in ObjectType.__members__:
            raise InvalidError(f"no type is called {kind}; known: {', '.join(ObjectType.__members__)}")
        groups = [self._place.group(alias) for alias in words[1:]]
        made = self._place.node.create(ObjectType[kind], groups=groups)
        self._hold(made)
        if made.name is not None:
            say(f"name: {format_name(made.name)}")

    def do_lookup(self, arg: str) -> None:
        """``lookup NAME [GROUP]``: references to every object of that name, in one group or all of yours."""
        words = _words(arg, 1, 2)
        name, _ = self._place.find(words[0])
        group = self._place.group(words[1]) if len(words) > 1 else None
        found = self._place.node.lookup(name, group=group)
        for reference in found:
            self._hold(reference)
        if not found:
            say("nothing: no such object, or you are in none of its groups")

    def do_refs(self, arg: str) -> None:
        """``refs``: the references held, with their attributes as of now."""
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
        """``read REF [SIZE [OFFSET]]``: its bytes, as text or hex; the first 1024 unless you say."""
        words = _words(arg, 1, 3)
        size = _number(words[1]) if len(words) > 1 else SHOWN_BYTES
        offset = _number(words[2]) if len(words) > 2 else 0
        sys.stdout.write(
            shown_bytes(self._reference(words[0]).read_bytes(size, offset, Semantics.ANY)) + "\n"
        )

    def do_write(self, arg: str) -> None:
        """``write REF TEXT``: make TEXT its bytes, and its end."""
        label, _, text = arg.strip().partition(" ")
        version = self._reference(label).write_bytes(text.encode(), 0, Semantics.EXCL)
        say(f"v_w {version}")

    def do_copy(self, arg: str) -> None:
        """``copy REF``: a second reference of your own to the same object."""
        (label,) = _words(arg, 1, 1)
        self._hold(self._reference(label).copy())

    def do_drop(self, arg: str) -> None:
        """``drop REF...``: let go of references; the objects live on as others hold them."""
        for label in _words(arg, 1, 256):
            self._reference(label).close()
            del self._held[label]

    def do_destroy(self, arg: str) -> None:
        """``destroy REF...``: destroy the objects, for everybody."""
        for label in _words(arg, 1, 256):
            self._reference(label).destroy()
            del self._held[label]

    def do_select(self, arg: str) -> None:
        """``select SECONDS REF...``: wait until one of the references can be read."""
        seconds, *labels = _words(arg, 2, 256)
        ready = self._place.node.select(
            [self._reference(label) for label in labels], mode="read", timeout=_seconds(seconds)
        )
        say(next((label for label in labels if self._held[label] is ready), "none became ready in time"))

    def do_whoami(self, arg: str) -> None:
        """``whoami``: this session's own task."""
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
        raise InvalidError(
            f"takes {least}{f' to {most}' if most > least else ''} words; `help COMMAND` says which"
        )
    return words


def _number(text: str) -> int:
    if not text.isdecimal():
        raise InvalidError(f"{text!r} is no count of bytes")
    return int(text)


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidError(f"{text!r} is no number of seconds") from None


def history_path() -> Path:
    """Where lines are kept from one shell to the next, readable by their owner only."""
    return config_directory() / "shell_history"


def _take_lines(interpreter: Shell) -> None:
    """Take lines until one ends the session; Ctrl-C drops the line that was being typed, as shells do."""
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
    # Names are secrets: a line that holds one is not kept.
    for position in range(readline.get_current_history_length(), 0, -1):
        if PREFIX in (readline.get_history_item(position) or "").lower():
            readline.remove_history_item(position - 1)
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        readline.write_history_file(path)


def _found_command(command: object, words: list[str]) -> tuple[int, bool]:
    """How many words name the command, two in ``audit grep``, and whether it takes ``--node`` behind them."""
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
def shell(context: typer.Context, *, node: NodeOption = None) -> None:
    """A prompt over names, groups, references and tasks.

    It is one session: what it creates and looks up stays in its reference table until it ends.
    """
    root = context.find_root().command

    def run_command(words: list[str]) -> None:
        at, takes_node = _found_command(root, words)
        chosen = ["--node", node] if node and takes_node and "--help" not in words else []
        # Standalone, so that it tells its own errors; only its exit must not be ours.
        with contextlib.suppress(SystemExit):
            root.main([*words[:at], *chosen, *words[at:]], prog_name="dios")

    with reporting("dios shell"), opened(node) as place, _history():
        interpreter = Shell(place, run_command)
        if not sys.stdin.isatty():
            interpreter.prompt, interpreter.intro, interpreter.use_rawinput = "", "", False
        _take_lines(interpreter)

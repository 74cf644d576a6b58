"""What each attempt of the evil job is in words, what stops it, and by which error one sees that.

Not for: making them (``evil_words.py``) or telling the story (``demo_evil.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

VIEW: Final = "its view of the files: the path is not in it (mount namespace)"
LANDLOCK: Final = "Landlock: only Python's library may be read"
FILTER: Final = "the system-call filter (seccomp)"
SEALED: Final = "the memory itself, sealed or opened for reading only"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt: ``stopped`` says by layer what each expected answer comes from, "" meaning found nothing.

    ``behind`` is what would hold if that layer did not. ``record`` is the action of the audit record that it
    leaves, empty where it never reaches the node. ``control``: an ordinary program can make it too.
    """

    name: str
    tries: str
    stopped: dict[str, str]
    behind: str = ""
    record: str = ""
    control: bool = False


@dataclass(frozen=True, slots=True)
class Chapter:
    """Attempts with one aim."""

    title: str
    told: str
    attempts: tuple[Attempt, ...]


def _core(name: str, tries: str, answer: str, why: str, record: str) -> Attempt:
    """An attempt that the node's core refuses: a call about objects."""
    return Attempt(name, tries, {answer: f"the core: {why}"}, record=record)


def _way_out(name: str, tries: str) -> Attempt:
    behind = "an empty network of its own (network namespace)"
    return Attempt(name, tries, {"EPERM": FILTER}, behind=behind, control=True)


CHAPTERS: Final = (
    Chapter(
        "Read what it was not given",
        "It looks for the mail archive where a program would: in files, and in other processes.",
        (
            Attempt("read_mail_file", "open the archive's file", {"ENOENT": VIEW}, LANDLOCK, control=True),
            Attempt("read_store", "open a file of the node itself", {"ENOENT": VIEW}, LANDLOCK, control=True),
            Attempt("read_passwords", "open /etc/passwd", {"ENOENT": VIEW}, LANDLOCK, control=True),
            Attempt("list_root", "list the root directory", {"EACCES": LANDLOCK}, VIEW, control=True),
            Attempt(
                "read_process",
                "read another process's environment in /proc",
                {"ENOENT": VIEW},
                "process numbers of its own (pid namespace)",
                control=True,
            ),
            Attempt(
                "signal_process",
                "send a signal to another process",
                {"EPERM": FILTER},
                "process numbers of its own (pid namespace)",
                control=True,
            ),
        ),
    ),
    Chapter(
        "Ask for it by name",
        "In DIOS data have names that nobody can guess. Its author has learned some all the same: those of "
        "the archive, of its group and of an accomplice. A name alone is not enough: it means something to "
        "members of the group only. And the answer does not even tell whether there is such a thing.",
        (
            _core("leaked_mail", "resolve the archive's leaked name", "", "not in its groups", "lookup"),
            _core("leaked_group", "resolve the leaked name of the archive's group", "", "the same", "lookup"),
            _core("leaked_task", "resolve the accomplice's leaked name", "", "the same", "lookup"),
            _core(
                "tell_apart", "tell the archive's name from one that nobody has", "", "same answer", "lookup"
            ),
            _core(
                "leaked_reference",
                "use the number of somebody else's reference to it",
                "EBADF",
                "a number means something in its own task's table only",
                "readonce",
            ),
            _core(
                "guess_references", "guess numbers of references", "EBADF", "none was handed to it", "stat"
            ),
            _core("guess_buffer", "commit into a guessed buffer", "EBADF", "not its buffer", "commitwrite"),
            _core(
                "plant_in_mail_group",
                "put an object of its own into the archive's group",
                "EBADF",
                "no reference to that group",
                "create",
            ),
            _core(
                "look_around",
                "list the tasks on the node",
                "EPERM",
                "a pure task sees no others",
                "listtasks",
            ),
        ),
    ),
    Chapter(
        "Carry its input away",
        "What it counts it may read. It tries to send that somewhere, and the demo listens at each place.",
        (
            _way_out("connect_tcp", "connect a TCP socket"),
            _way_out("connect_tcp6", "connect a TCP socket over IPv6"),
            _way_out("send_udp", "send a UDP datagram"),
            Attempt(
                "ask_for_host",
                "ask for a host's address, in whose name loot can hide",
                {"no such host": f"{FILTER}: no name server is asked"},
                "an empty network of its own (network namespace)",
                control=True,
            ),
            _way_out("open_netlink", "ask the kernel which networks there are (netlink)"),
            Attempt(
                "open_packets",
                "read and write whole packets (a packet socket)",
                {"EPERM": FILTER},
                "no capability for it, and an empty network of its own",
                control=True,
            ),
            Attempt(
                "open_vsock", "reach the machine below this one (vsock)", {"EPERM": FILTER}, control=True
            ),
            Attempt("connect_unix", "connect a Unix socket", {"EPERM": FILTER}, VIEW, control=True),
            Attempt(
                "connect_abstract",
                "connect a Unix socket without a path",
                {"EPERM": FILTER},
                "the network namespace, and Landlock",
                control=True,
            ),
            Attempt("connect_node", "connect to the node as if it were a person", {"EPERM": FILTER}, VIEW),
            Attempt("redirect_own_socket", "connect the one socket it has elsewhere", {"EPERM": FILTER}),
            Attempt(
                "write_file",
                "write a file",
                {"EPERM": FILTER},
                "a view without any place to write",
                control=True,
            ),
            _core(
                "delegate_input",
                "hand its input to the accomplice",
                "EPERM",
                "no right to delegate it",
                "copy",
            ),
            _core(
                "delegate_copy", "hand a copy to the accomplice", "EBADF", "no reference to that task", "copy"
            ),
            _core("delegate_group", "hand on its group", "EPERM", "groups are never handed on", "copy"),
        ),
    ),
    Chapter(
        "Get help",
        "What it may not do itself, another program could do for it.",
        (
            Attempt(
                "run_nc", "start nc, which sends what it is given", {"EPERM": FILTER}, VIEW, control=True
            ),
            Attempt("run_shell", "start a shell", {"EPERM": FILTER}, VIEW, control=True),
            Attempt("fork", "become two processes", {"EPERM": FILTER}, control=True),
            _core(
                "limbo_child",
                "start a task outside the sandbox (limbo)",
                "EPERM",
                "pure tasks start pure ones",
                "run",
            ),
            Attempt(
                "pure_child",
                "start a helper in the sandbox, and have it connect",
                {"EPERM": "it may be started; its own filter stops it (seccomp)"},
                "the helper's network namespace",
            ),
            _core(
                "child_with_input", "start a helper with its input", "EPERM", "no right to delegate it", "run"
            ),
            _core(
                "child_in_mail_group",
                "start a helper in the archive's group",
                "EBADF",
                "no reference to it",
                "run",
            ),
        ),
    ),
    Chapter(
        "Widen its rights",
        "It may read its input. It would rather change it, so that others count wrong.",
        (
            _core("widen", "make itself a reference with every right", "EPERM", "rights only shrink", "copy"),
            _core("write_input", "write into its input", "EPERM", "it may read only", "writeonce"),
            _core("delete_input", "delete its input", "EPERM", "no right to delete", "delete"),
            _core("read_outlet", "read a stream that it may write", "EPERM", "it may write only", "attach"),
            _core("stop_node", "stop the node", "EPERM", "not for tasks", "shutdown"),
            Attempt(
                "assign_view",
                "write into the view of its input",
                {"TypeError": "Python: a read-only view"},
                SEALED,
            ),
            Attempt(
                "write_descriptor", "write through the view's descriptor", {"EPERM": SEALED, "EBADF": SEALED}
            ),
            Attempt(
                "map_writable", "map that memory again, to be written", {"EPERM": SEALED, "EACCES": SEALED}
            ),
            Attempt("unprotect", "make the mapped pages writable", {"EACCES": SEALED, "EPERM": SEALED}),
            Attempt(
                "reopen", "open the descriptor anew through /proc", {"ENOENT": VIEW, "EPERM": FILTER}, SEALED
            ),
        ),
    ),
)

ALL: Final = {attempt.name: attempt for chapter in CHAPTERS for attempt in chapter.attempts}

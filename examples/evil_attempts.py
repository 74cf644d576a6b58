"""The attempts of the evil job: a description, the layer that stops each, and the expected error.

They are made in ``evil_words.py`` and shown by ``demo_evil.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

VIEW: Final = "its view of the files, which lacks the path (mount namespace)"
LANDLOCK: Final = "Landlock: only Python's library is readable"
FILTER: Final = "the system-call filter (seccomp)"
SEALED: Final = "the memory itself, sealed or opened read-only"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt. ``stopped`` maps each expected answer to the layer that gives it; "" means nothing found.

    ``behind`` is the layer that would stop the attempt otherwise. ``record`` is the action of the audit
    record, empty if the attempt never reaches the node. ``control``: an ordinary program can make the attempt
    too.
    """

    name: str
    tries: str
    stopped: dict[str, str]
    behind: str = ""
    record: str = ""
    control: bool = False


@dataclass(frozen=True, slots=True)
class Chapter:
    """Attempts with one goal."""

    title: str
    told: str
    attempts: tuple[Attempt, ...]


def _core(name: str, tries: str, answer: str, why: str, record: str) -> Attempt:
    """Return an attempt that the node's core refuses: a call about objects."""
    return Attempt(name, tries, {answer: f"the core: {why}"}, record=record)


def _way_out(name: str, tries: str) -> Attempt:
    behind = "an empty network of its own (network namespace)"
    return Attempt(name, tries, {"EPERM": FILTER}, behind=behind, control=True)


CHAPTERS: Final = (
    Chapter(
        "Read data that it was not given",
        "It looks for the mail archive in files and in other processes.",
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
        "Look up names",
        "In DIOS data has names that nobody can guess. But the author has learned some names: those of the "
        "archive, of its group and of an accomplice. A name alone is not enough: it works only for members "
        "of the group. And the answer does not even reveal that the object exists.",
        (
            _core("leaked_mail", "resolve the archive's leaked name", "", "not in its groups", "lookup"),
            _core(
                "leaked_group",
                "resolve the leaked name of the archive's group",
                "",
                "not in its groups",
                "lookup",
            ),
            _core("leaked_task", "resolve the accomplice's leaked name", "", "not in its groups", "lookup"),
            _core(
                "tell_apart", "compare the archive's name with a nonexistent one", "", "same answer", "lookup"
            ),
            _core(
                "leaked_reference",
                "use the number of another task's reference to it",
                "EBADF",
                "a number is valid in its own task's table only",
                "readonce",
            ),
            _core(
                "guess_references", "guess numbers of references", "EBADF", "it has no such reference", "stat"
            ),
            _core("guess_buffer", "commit into a guessed buffer", "EBADF", "not its buffer", "commitwrite"),
            _core(
                "plant_in_mail_group",
                "put its own object into the archive's group",
                "EBADF",
                "no reference to that group",
                "create",
            ),
            _core(
                "look_around",
                "list the tasks on the node",
                "EPERM",
                "a pure task sees no other tasks",
                "listtasks",
            ),
        ),
    ),
    Chapter(
        "Send its input away",
        "It can read the data that it counts. It tries to send it away; the demo listens at each place.",
        (
            _way_out("connect_tcp", "connect a TCP socket"),
            _way_out("connect_tcp6", "connect a TCP socket over IPv6"),
            _way_out("send_udp", "send a UDP datagram"),
            Attempt(
                "ask_for_host",
                "ask for a host's address, with data hidden in the name",
                {"no such host": f"{FILTER}: no name server is reachable"},
                "an empty network of its own (network namespace)",
                control=True,
            ),
            _way_out("open_netlink", "ask the kernel for its network interfaces (netlink)"),
            Attempt(
                "open_packets",
                "read and write raw packets (a packet socket)",
                {"EPERM": FILTER},
                "no capability for it, and an empty network namespace",
                control=True,
            ),
            Attempt(
                "open_vsock",
                "connect to the host of a virtual machine (vsock)",
                {"EPERM": FILTER},
                control=True,
            ),
            Attempt("connect_unix", "connect a Unix socket", {"EPERM": FILTER}, VIEW, control=True),
            Attempt(
                "connect_abstract",
                "connect an abstract Unix socket",
                {"EPERM": FILTER},
                "the network namespace, and Landlock",
                control=True,
            ),
            Attempt("connect_node", "connect to the node as a user", {"EPERM": FILTER}, VIEW),
            Attempt("redirect_own_socket", "connect its own socket elsewhere", {"EPERM": FILTER}),
            Attempt(
                "write_file",
                "write a file outside its folder",
                {"ENOENT": VIEW, "EROFS": "its view of the files, which is read-only"},
                LANDLOCK,
                control=True,
            ),
            _core(
                "delegate_input",
                "delegate its input to the accomplice",
                "EPERM",
                "no permission to delegate it",
                "copy",
            ),
            _core(
                "delegate_copy",
                "delegate a copy to the accomplice",
                "EBADF",
                "no reference to that task",
                "copy",
            ),
            _core("delegate_group", "delegate its group", "EPERM", "groups cannot be delegated", "copy"),
        ),
    ),
    Chapter(
        "Get help",
        "Another program could do what it cannot do itself.",
        (
            Attempt("run_nc", "start nc, which sends its input", {"EPERM": FILTER}, VIEW, control=True),
            Attempt("run_shell", "start a shell", {"EPERM": FILTER}, VIEW, control=True),
            Attempt("fork", "create a second process", {"EPERM": FILTER}, control=True),
            _core(
                "limbo_child",
                "start a task outside the sandbox (limbo)",
                "EPERM",
                "pure tasks start only pure tasks",
                "run",
            ),
            Attempt(
                "pure_child",
                "start a helper in the sandbox, and have it connect",
                {"EPERM": "it can be started, but its own filter stops it (seccomp)"},
                "the helper's network namespace",
            ),
            _core(
                "child_with_input",
                "start a helper with its input",
                "EPERM",
                "no permission to delegate it",
                "run",
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
        "Extend its permissions",
        "It can read its input. It tries to change it, so that others get wrong counts.",
        (
            _core(
                "widen",
                "create a reference with every permission",
                "EPERM",
                "permissions only shrink",
                "copy",
            ),
            _core("write_input", "write to its input", "EPERM", "it has read permission only", "writeonce"),
            _core("delete_input", "delete its input", "EPERM", "no permission to delete", "delete"),
            _core(
                "read_outlet", "read a stream for writing", "EPERM", "it has write permission only", "attach"
            ),
            _core("stop_node", "stop the node", "EPERM", "not permitted to tasks", "shutdown"),
            Attempt(
                "assign_view",
                "write to the view of its input",
                {"TypeError": "Python: a read-only view"},
                SEALED,
            ),
            Attempt(
                "write_descriptor", "write through the view's descriptor", {"EPERM": SEALED, "EBADF": SEALED}
            ),
            Attempt("map_writable", "map that memory again, writable", {"EPERM": SEALED, "EACCES": SEALED}),
            Attempt("unprotect", "make the mapped pages writable", {"EACCES": SEALED, "EPERM": SEALED}),
            Attempt(
                "reopen", "open the descriptor again through /proc", {"ENOENT": VIEW, "EPERM": FILTER}, SEALED
            ),
        ),
    ),
)

ALL: Final = {attempt.name: attempt for chapter in CHAPTERS for attempt in chapter.attempts}

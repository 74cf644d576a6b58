"""Finds out which mechanisms this machine has to confine a pure task, by trying each in a child process.

The probe runs in an interpreter of its own, because some mechanisms cannot be undone, and because a daemon
with threads must not fork.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from dios import limits
from dios.errors import NotSupportedError, WouldBlockError
from dios.host.confinement.notifications import FORKS
from dios.start_watch import StartWatch
from dios.wire.types import Fitness

PURE_TASKS: Final = "pure tasks"
"""The name of a node's guarantee that it confines pure tasks."""
NEEDED_FOR_PURE: Final = (
    *("user", "pid", "mount", "net", "ipc", "uts"),
    *("no_new_privs", "landlock", "seccomp", "memfd_seals", "pidfd"),
)
LOST_WITHOUT: Final[Mapping[str, str]] = {
    "cgroup_memory": (
        f"a hostile pure task can exceed its memory limit for {limits.TASK_MEMORY_WATCH_MS} ms, until the "
        "node reads its memory again, the kernel can keep as much again for its sockets, pipes and event "
        "queues and 20 MiB for its mappings and threads, and it keeps an entry for each name that a task "
        "looks up in vain, without a bound and after the task's end, until it needs the memory; the limit of "
        "a limbo task holds for each of its processes alone"
    ),
    "cgroup_pids": "a limit of threads and processes does not hold for limbo tasks",
    FORKS: "sessions of a sandbox cannot be forked",
    "passrights": (
        "a user's program can send the node a socket whose closing waits (SO_LINGER), which delays the node; "
        "the ends of a stream can do the same to each other"
    ),
}
"""The optional mechanisms, each with what does not hold without it."""


class Availability(Enum):
    """The result of the attempts to use a mechanism."""

    AVAILABLE = "available"
    MISSING = "missing"
    UNKNOWN = "unknown"
    """No attempt has come to an answer: it is not finished, was ended from outside, or lacked memory."""


@dataclass(frozen=True, slots=True)
class Mechanism:
    """One mechanism: its availability here, a detail, and True if a pure task needs it.

    ``tried_ns`` is the time of the last attempt that ended, in nanoseconds since 1970, 0 before the first.
    """

    availability: Availability
    detail: str
    needed_for_pure: bool
    tried_ns: int = 0

    @property
    def available(self) -> bool:
        """True if the mechanism is known to be available."""
        return self.availability is Availability.AVAILABLE

    def described(self) -> str:
        """Return the detail; with the availability before it, unless the mechanism is available."""
        return self.detail if self.available else f"{self.availability.value}: {self.detail}"


def all_unknown(detail: str = "not tried yet") -> dict[str, Mechanism]:
    """Return every mechanism with the availability UNKNOWN, by name."""
    names = (*NEEDED_FOR_PURE, *LOST_WITHOUT)
    return {name: Mechanism(Availability.UNKNOWN, detail, name in NEEDED_FOR_PURE) for name in names}


def fitness_of(mechanisms: Mapping[str, Mechanism], *, accept_weaker: bool = False) -> Fitness:
    """Return the fitness for pure tasks of a machine with these mechanisms.

    With ``accept_weaker``, a machine is fit without mechanisms that are known to be missing. No machine is
    fit while a mechanism that pure tasks need is unknown.
    """
    needed = {m.availability for m in mechanisms.values() if m.needed_for_pure}
    if Availability.MISSING in needed and not accept_weaker:
        return Fitness.UNFIT
    return Fitness.UNKNOWN if Availability.UNKNOWN in needed else Fitness.FIT


def obstacle_to_pure(mechanisms: Mapping[str, Mechanism]) -> str:
    """Return the reason why pure tasks cannot be confined here, as far as is known, or "" if they can.

    Mechanisms with the same reason are named together.
    """
    names: dict[tuple[str, str], list[str]] = {}
    for name, mechanism in mechanisms.items():
        if mechanism.needed_for_pure and not mechanism.available:
            names.setdefault((mechanism.availability.value, mechanism.detail), []).append(name)
    return "; ".join(
        f"{', '.join(group)} {availability} ({detail})" for (availability, detail), group in names.items()
    )


def require_pure(mechanisms: Mapping[str, Mechanism]) -> None:
    """Raise ``NotSupportedError`` with the reasons if mechanisms for pure tasks are missing on this machine.

    Raise ``WouldBlockError`` if none is missing, but some are not known yet.
    """
    fitness = fitness_of(mechanisms)
    if fitness is Fitness.UNFIT:
        raise NotSupportedError(not_confined(mechanisms), call="run")
    if fitness is Fitness.UNKNOWN:
        raise WouldBlockError(
            f"it is not known yet if this machine can confine pure tasks: {obstacle_to_pure(mechanisms)}. "
            "Try again in a moment.",
            call="run",
        )


def not_confined(mechanisms: Mapping[str, Mechanism]) -> str:
    """Return the sentence about a machine that lacks mechanisms for pure tasks."""
    return (
        f"this machine cannot confine them: {obstacle_to_pure(mechanisms)}. `dios doctor` shows the remedy."
    )


# -- an attempt to use each mechanism -----------------------------------------------------------------
class Probe:
    """Attempts to use each mechanism, in an interpreter of its own.

    An interpreter that a busy machine starves, or that somebody stopped, is waited for: only one that hangs
    (``dios.start_watch``), or that uses more than SANDBOX_PROBE_CPU_S_MAX of processor time, is given up. The
    mechanisms that it has not tried then remain unknown.
    """

    def __init__(self, known: Mapping[str, Mechanism] | None = None) -> None:
        """Prepare attempts with each mechanism that is not available according to ``known``."""
        self.results = all_unknown("the probe has not come to it yet") if known is None else dict(known)
        """All mechanisms by name, as far as they are known."""
        self._process: subprocess.Popen[bytes] | None = None
        self._is_cancelled = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Run in a thread; ``wait`` waits for the end."""
        self._thread = threading.Thread(target=self.run, name="probe of the sandbox", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of a probe that was started; return False if it has not ended in ``timeout_s``."""
        assert self._thread is not None, "the caller started it"  # noqa: S101
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def cancel(self) -> None:
        """End the attempts soon. Another thread may call this."""
        self._is_cancelled = True
        process = self._process
        if process is not None:
            _kill_session(process)

    def run(self) -> dict[str, Mechanism]:
        """Make the attempts and return all mechanisms by name.

        This takes tenths of a second on an idle machine, and blocks. Nothing is raised.
        """
        wanted = {name: None for name, mechanism in self.results.items() if not mechanism.available}
        try:
            process = self._process = _start(list(wanted))
        except OSError as error:
            failure = f"the interpreter of the probe did not start: {error.strerror}"
        else:
            with process:
                if self._is_cancelled:
                    _kill_session(process)
                failure = _read_answers(process, self.results, wanted)
            self._process = None
        for name in wanted if failure else ():
            _settle(self.results, name, Availability.UNKNOWN, failure)
        return self.results


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _start(names: Sequence[str]) -> subprocess.Popen[bytes]:
    package = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - runs before pathlib is wanted
    root = package.removesuffix("/dios/host/confinement")
    code = f"import sys; sys.path.insert(0, sys.argv[1]); from {__name__} import main; main(sys.argv[2:])"
    command = [sys.executable, "-I", "-S", "-c", code, root, *names]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={},
        cwd="/",
        start_new_session=True,
    )


def _read_answers(
    process: subprocess.Popen[bytes],
    results: dict[str, Mechanism],
    wanted: dict[str, None],
) -> str:
    """Put the answers of the interpreter into ``results`` and remove their names from ``wanted``.

    Return the reason why answers are missing, empty if none is.
    """
    assert process.stdout is not None, "it is a pipe"  # noqa: S101
    assert process.stderr is not None, "it is a pipe"  # noqa: S101
    watch = StartWatch(process.pid)
    text = b""
    while True:
        if not watch.wait(process.stdout.fileno()):
            _kill_session(process)
            return f"an attempt hung: it used no processor time ({next(iter(wanted), '')})"
        data = os.read(process.stdout.fileno(), 65536)
        if not data:
            break
        *lines, text = (text + data).split(b"\n")
        for line in lines:
            try:
                name, availability, detail = json.loads(line)
                _settle(results, name, Availability(availability), detail)
            except (ValueError, KeyError, TypeError):
                return f"the probe printed {line[:80]!r}"
            wanted.pop(name, None)
    status = process.wait()
    if not wanted:
        return ""
    if status < 0:
        return f"the probe was ended by {signal.Signals(-status).name}"
    last = process.stderr.read().decode(errors="replace").strip().rpartition("\n")[2]
    return f"the probe ended with status {status}" + (f": {last[:200]}" if last else "")


def _settle(results: dict[str, Mechanism], name: str, availability: Availability, detail: str) -> None:
    results[name] = Mechanism(availability, detail, results[name].needed_for_pure, time.time_ns())


def probe() -> dict[str, Mechanism]:
    """Try every mechanism and return all by name; see ``Probe.run``."""
    return Probe().run()


# -- in the probe's own interpreter ---------------------------------------------------------------
def main(names: Sequence[str]) -> None:
    """Try these mechanisms, each in a fork, and write a line of JSON for each to standard output."""
    # Imported here, because the daemon imports this module and does not need ctypes.
    from dios.host.confinement import probing  # noqa: PLC0415

    most = limits.SANDBOX_PROBE_CPU_S_MAX
    resource.setrlimit(resource.RLIMIT_CPU, (most, most))
    attempts = probing.attempts()
    for name in names:
        availability, detail = _in_child(attempts[name])
        sys.stdout.write(json.dumps((name, availability.value, detail)) + "\n")
        sys.stdout.flush()


_STATUSES: Final = {
    0: Availability.AVAILABLE,
    1: Availability.MISSING,
    2: Availability.UNKNOWN,
}
"""The exit statuses of an attempt."""

_TEMPORARY: Final = frozenset(
    {errno.EAGAIN, errno.EINTR, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ETIMEDOUT}
)
_NAMESPACE_LIMITS: Final = "/proc/sys/user/max_{}_namespaces"


def _in_child(attempt: Callable[[], str]) -> tuple[Availability, str]:
    """Run one attempt in a fork. Return the availability and a detail."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        _attempt_and_end(attempt, write_end)
    os.close(write_end)
    with os.fdopen(read_end) as answer:
        text = answer.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status >= 0:
        return _STATUSES[status], text
    ended_by = signal.Signals(-status)
    # The machine's own filter of system calls ends a process by SIGSYS. Other signals prove nothing.
    is_refused = ended_by is signal.Signals.SIGSYS
    kind = Availability.MISSING if is_refused else Availability.UNKNOWN
    return kind, f"the attempt was ended by {ended_by.name}"


def _attempt_and_end(attempt: Callable[[], str], write_end: int) -> None:
    status, text = 1, ""
    try:
        text, status = attempt(), 0
    except OSError as error:
        text = str(error.strerror or error)
        status = 2 if _is_temporary(error) else 1
    except MemoryError:
        status, text = 2, "no memory"
    except Exception as error:  # noqa: BLE001 - a probe reports whatever goes wrong
        text = f"{type(error).__name__}: {error}"
    finally:
        os.write(write_end, text.encode()[: limits.TEXT_BYTES_MAX])
        os._exit(status)


def _is_temporary(error: OSError) -> bool:
    """Return True if an attempt may succeed later on the same machine."""
    if error.errno == errno.ENOSPC:  # as many namespaces as the machine permits exist
        return not any(_forbids(name) for name in ("user", "pid", "mnt", "net", "ipc", "uts"))
    return error.errno in _TEMPORARY


def _forbids(namespace: str) -> bool:
    try:
        with open(_NAMESPACE_LIMITS.format(namespace), encoding="ascii") as file:  # noqa: PTH123 - no pathlib
            return int(file.read()) == 0
    except (OSError, ValueError):
        return False

"""Starts and stops a node's process, with a pid file and a pipe that reports when it is ready.

``dios.node.serve`` runs in the process; ``dios.cli.nodes.daemon`` has the commands. The daemon is a new
interpreter, not a fork of the command line: it needs less memory, and no thread of its parent can hold a lock
in it.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from dios import limits
from dios.client.locate import accepted_users
from dios.errors import DiosError, ExistsError, TimeLimitError, UnreachableError, unwrap_group
from dios.node.launch import CONTINUE, TRY, Continued, Launch
from dios.node.settings import Settings, load
from dios.start_watch import LOOK_S, HangAlarm, StartWatch
from dios.store import locking
from dios.transport.unix.credentials import require_server
from dios.transport.unix.path import socket_address
from dios.trusted_files import require_trusted, weakness

if TYPE_CHECKING:
    from dios.host.confinement.mechanisms import Probe
    from dios.host.process.zygote_process import StartedZygote

T = TypeVar("T")

LOG_NAME: Final = "node.log"

_DELETING_THREADS: Final = 32

_RECOVERING: Final = b"recovering "
"""The beginning of a line about the progress of a start; the objects that are done, and all, follow."""

_PID_FILE_BYTES: Final = 128


class StartError(DiosError):
    """The node's process ended at its start or was not ready in time; the message has reason and log."""


ACCEPT_LOST_AUDIT: Final = "--accept-lost-audit"
_OF_ONE_START: Final = ("--ready=", f"{CONTINUE}=", ACCEPT_LOST_AUDIT)


@dataclass(frozen=True, slots=True)
class DaemonProcess:
    """A running node's process."""

    pid: int
    socket: Path


class Recovery(NamedTuple):
    """The progress of a node that starts and does not answer yet: the stored objects done, and all."""

    pid: int
    done: int
    every: int


# -- seen from outside ------------------------------------------------------------------------------
def find(path: Path) -> DaemonProcess | None:
    """Return the process that answers on the socket at ``path``, or None.

    Raise UnreachableError if this user may not connect there, NotPermittedError if the process is of another
    user than root, the caller's own and the configured one: a command would believe and signal it.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
        try:
            with socket_address(path) as address:
                probe.connect(address)
        except OSError as error:
            if error.errno in {errno.EACCES, errno.EPERM}:
                raise UnreachableError(f"this user may not connect to the node at {path}") from None
            return None
        peer = require_server(probe, path, accepted_users)
    return DaemonProcess(peer.pid, path.resolve())


def find_recovery(path: Path) -> Recovery | None:
    """Return the progress of the node with the pid file ``path``, or None if none recovers there."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        # A file that nobody has locked was left by a node that was killed.
        if locking.try_to_share(fd):
            return None
        words = os.pread(fd, _PID_FILE_BYTES, 0).split()
        pid, word, done, every = words
        return Recovery(int(pid), int(done), int(every)) if word == _RECOVERING.strip() else None
    except (OSError, ValueError):
        return None
    finally:
        os.close(fd)


def start_detached(
    data: Path,
    *,
    config: Path | None = None,
    flags: Mapping[str, str] | None = None,
    accept_lost_audit: bool = False,
    waiting: Callable[[float], None] = lambda _: None,
    recovering: Callable[[int, int], None] = lambda _, __: None,
) -> DaemonProcess:
    """Start a node that outlives this process, and return once it answers.

    ``flags`` are settings as text. ``waiting`` is called about ten times per second with the elapsed seconds,
    and ``recovering`` during a long start with the number of stored objects that are done, and of all.
    ``accept_lost_audit`` is for one start. Raise ExistsError if a node runs in ``data`` already,
    SettingsError for an invalid setting, StartError with the node's own message if it does not start.
    """
    settings = load(data, config=config, flags=flags)
    running = find(settings.socket)
    if running is not None:
        raise ExistsError(f"a node already runs in {settings.data}, as process {running.pid}")
    log = settings.log_file or settings.data / LOG_NAME
    with _explaining_directory(settings.data):
        settings.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        _require_trusted_places(settings)
        log.parent.mkdir(parents=True, exist_ok=True)
        output = open(log, "ab", opener=_for_its_owner)  # noqa: SIM115 - closed below, beside the pipe
    ready, ready_far = os.pipe()
    try:
        with output:
            process = subprocess.Popen(
                command(
                    data,
                    config=config,
                    flags=flags,
                    ready=ready_far,
                    accept_lost_audit=accept_lost_audit,
                ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(ready_far,),
                start_new_session=True,
            )
        os.close(ready_far)
        ready_far = -1
        _wait_ready(ready, process, log, waiting, recovering)
    finally:
        os.close(ready)
        if ready_far >= 0:
            os.close(ready_far)
    # The process is not waited for: this process ends before the daemon does.
    process.returncode = 0
    return DaemonProcess(process.pid, settings.socket)


def _require_trusted_places(settings: Settings) -> None:
    """Raise UntrustedError if another user could change the data directory, or redirect what is written."""
    # Imported late, because a start without errors needs no store here.
    from dios.store.directory import require_own_directory  # noqa: PLC0415 - see above

    require_own_directory(settings.data)
    for path, description in (
        (settings.log_file, "the log file"),
        (settings.record, "the file of events"),
        (settings.audit_heads, "the file of audit heads"),
    ):
        if path is not None:
            require_trusted(path, description)


@contextlib.contextmanager
def _explaining_directory(data: Path) -> Iterator[None]:
    """Raise StartError with owner and mode of a directory in which nothing can be written."""
    try:
        yield
    except OSError as error:
        # Imported late, because a start without errors needs no store here.
        from dios.store.directory import cannot_write  # noqa: PLC0415 - see above

        raise StartError(cannot_write(data, error.strerror or str(error))) from error


def _for_its_owner(path: str, flags: int) -> int:
    """Open a file that only its owner may read if it is new, because a log has private information."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def command(
    data: Path,
    *,
    config: Path | None,
    flags: Mapping[str, str] | None,
    ready: int | None = None,
    accept_lost_audit: bool = False,
) -> list[str]:
    """Return the command of a daemon in the foreground. Settings are not secret, so they are arguments."""
    extra = [] if config is None else [f"--config={config}"]
    extra += [] if ready is None else [f"--ready={ready}"]
    extra += [ACCEPT_LOST_AUDIT] if accept_lost_audit else []
    extra += [f"{key}={value}" for key, value in (flags or {}).items()]
    # -P: a module of the working directory, which anybody may have put there, is never imported.
    return [sys.executable, "-P", "-m", "dios.node.daemon", str(data), *extra]


def _wait_ready(
    ready: int,
    process: subprocess.Popen[bytes],
    log: Path,
    waiting: Callable[[float], None],
    recovering: Callable[[int, int], None],
) -> None:
    began = time.monotonic()
    looked = began
    watch = StartWatch(process.pid)
    said = b""
    while True:
        if not select.select([ready], [], [], 0.1)[0]:
            now = time.monotonic()
            waiting(now - began)
            if now - looked >= LOOK_S:
                looked = now
                if watch.hangs():
                    break
            continue
        data = os.read(ready, 4096)
        said += data
        while said.startswith(_RECOVERING) and b"\n" in said:
            line, _, said = said.partition(b"\n")
            watch.progressed()
            done, every = line.removeprefix(_RECOVERING).split()
            recovering(int(done), int(every))
        if said == b"ready\n":
            return
        if not data:
            process.wait()
            why = said.decode(errors="replace").strip() or f"it ended with status {process.returncode}"
            raise StartError(f"the node did not start: {why}. See its log {log}.")
    process.kill()
    process.wait()
    raise StartError(
        f"the node hung at its start and was ended: it did nothing for {limits.START_QUIET_MAX} s, or "
        f"used {limits.START_CPU_MS_MAX // 60_000} min of processor time. See its log {log}."
    )


def stop(
    running: DaemonProcess,
    *,
    ask: Callable[[], None],
    say: Callable[[str], None] = lambda _: None,
    waiting: Callable[[float], None] = lambda _: None,
) -> str:
    """End a node: call ``ask`` first, then send SIGTERM, at last SIGKILL. Return which step ended it.

    ``say`` gets a sentence for each further step, ``waiting`` the elapsed seconds during a wait.
    """
    try:
        process = os.pidfd_open(running.pid)
    except ProcessLookupError:
        return "gone"
    try:
        try:
            ask()
        except DiosError as error:
            say(f"the node refused the request to stop ({error.message})")
        else:
            if _ended(process, limits.NODE_STOP_MS_MAX, waiting):
                return "asked"
            say(f"the node has not ended after {limits.NODE_STOP_MS_MAX // 1000} s")
        for number, name in ((signal.SIGTERM, "terminated"), (signal.SIGKILL, "killed")):
            say(f"sending {number.name} to process {running.pid}")
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, number)
            if _ended(process, limits.NODE_SIGNAL_MS_MAX, waiting):
                return name
    finally:
        os.close(process)
    raise TimeLimitError(
        f"process {running.pid} does not end even when killed. Look for the reason with ps and dmesg."
    )


def _ended(process: int, limit_ms: int, waiting: Callable[[float], None]) -> bool:
    began = time.monotonic()
    while (passed := time.monotonic() - began) * 1000 < limit_ms:
        # A pidfd is readable once its process has ended.
        if select.select([process], [], [], 0.1)[0]:
            return True
        waiting(passed)
    return False


# -- the default link -------------------------------------------------------------------------------
def claim_link(link: Path, target: Path) -> bool:
    """Point the default link to ``target``, unless another node answers there. Return True if it was set.

    Raise UntrustedError if another user could change the link.
    """
    link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    require_trusted(link.parent, "the folder of the default node")
    other = find(link)
    if other is not None and other.socket != target.resolve():
        return False
    fresh = link.with_name(f".{link.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    fresh.replace(link)
    return True


def drop_link(link: Path, target: Path) -> None:
    """Remove the default link if it points to ``target``."""
    with contextlib.suppress(OSError):
        if not weakness(link.parent) and link.is_symlink() and link.readlink() == target:
            link.unlink()


# -- the process itself -----------------------------------------------------------------------------
class PidFile(NamedTuple):
    """The descriptor with the lock, and a function that notes the progress of a recovery in the file."""

    fd: int
    note: Callable[[int, int], None]


@contextlib.contextmanager
def pid_file(path: Path, held: int = -1) -> Iterator[PidFile]:
    """Hold the locked pid file while the node runs. Raise ExistsError if another node runs.

    ``held`` is the descriptor of a predecessor of this process's program, which has locked it.
    """
    fd = held
    if held < 0:
        with _explaining_directory(path.parent):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not locking.lock_file(fd):
            pid = os.read(fd, _PID_FILE_BYTES).decode(errors="replace").partition("\n")[0]
            raise ExistsError(f"a node already runs in {path.parent}, as process {pid}")

        def note(done: int, every: int) -> None:
            # The file is only for people: a full disk must not keep the node from starting.
            with contextlib.suppress(OSError):
                text = b"%d\n" % os.getpid()
                if done < every:
                    text += b"%s%d %d\n" % (_RECOVERING, done, every)
                os.pwrite(fd, text, 0)
                os.ftruncate(fd, len(text))

        note(0, 0)
        try:
            yield PidFile(fd, note)
        finally:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
    finally:
        os.close(fd)


def early(work: Callable[[], T]) -> Callable[[], T]:
    """Start ``work``, which must not raise, in a thread. Return a function that waits for its result."""
    results: list[T] = []
    thread = threading.Thread(target=lambda: results.append(work()), name="early work", daemon=True)
    thread.start()

    def result() -> T:
        thread.join()
        return results[0]

    return result


def run(
    settings: Settings,
    started: Callable[[], None],
    recovering: Callable[[int, int], None] = lambda _, __: None,
    launch: Launch | None = None,
    continued: Continued | None = None,
    *,
    accept_lost_audit: bool = False,
) -> None:
    """Run the node until it is stopped; ``started`` is called once it answers.

    ``recovering`` is called during a long start with the number of objects that are done, and of all.
    ``launch`` is the command for a program that continues the node, and ``continued`` has the descriptors
    that the former program handed over.
    """
    with _explaining_directory(settings.data):
        settings.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    _require_trusted_places(settings)
    with pid_file(settings.pid_file, -1 if continued is None else continued.pid_file) as held:
        if launch is not None:
            launch.pid_file = held.fd

        def progress(done: int, every: int) -> None:
            held.note(done, every)
            recovering(done, every)

        # Imported late, so that commands that start or stop a node load no event loop and no store.
        from dios.host.confinement.mechanisms import Probe  # noqa: PLC0415 - see above

        probe = Probe()
        probe.start()
        from dios.node.task_zygote import started_first  # noqa: PLC0415 - the same

        with started_first(settings) as zygote_process:
            from dios.store.environment import prepare_new  # noqa: PLC0415 - the same

            prepared = early(lambda: prepare_new(settings.data))
            _run_loop(
                settings,
                started,
                progress,
                probe,
                prepared,
                zygote_process,
                launch,
                continued,
                accept_lost_audit=accept_lost_audit,
            )


def _run_loop(
    settings: Settings,
    started: Callable[[], None],
    recovering: Callable[[int, int], None],
    probe: Probe,
    prepared: Callable[[], None],
    zygote_process: StartedZygote | None,
    launch: Launch | None,
    continued: Continued | None,
    *,
    accept_lost_audit: bool,
) -> None:
    """Run the event loop. Its modules are loaded here, while the probe and the zygote run."""
    import trio  # noqa: PLC0415 - see above

    from dios.client.locate import default_socket  # noqa: PLC0415 - the same
    from dios.host.network.shaping import shaped  # noqa: PLC0415 - the same
    from dios.node.serve import serve  # noqa: PLC0415 - the same

    prepared()
    link = default_socket()
    predecessor = None
    if continued is not None:
        from dios.node.continuation import inherit, receive  # noqa: PLC0415 - the same

        predecessor = receive(continued.memory, settings)
        inherit(predecessor.host)

    def announce() -> None:
        # Without the link the node serves all who name it.
        with contextlib.suppress(OSError, DiosError):
            claim_link(link, settings.socket)
        signal.alarm(0)  # of a predecessor
        started()

    async def main() -> None:
        await serve(
            settings,
            started=announce,
            recovering=recovering,
            probe=probe,
            zygote_process=zygote_process,
            launch=launch,
            predecessor=predecessor,
            accept_lost_audit=accept_lost_audit,
        )

    try:
        with shaped(settings.data, settings.shape, settings.link_rate):
            trio.run(main)
    finally:
        drop_link(link, settings.socket)


def _end_with(pipe: int) -> None:
    """End this node when the last writing end of a pipe closes: it belongs to one program."""

    def wait() -> None:
        with contextlib.suppress(OSError):
            os.read(pipe, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="owner", daemon=True).start()


@dataclass(slots=True)
class _Options:
    """The arguments of a daemon; -1 for a descriptor that is not given."""

    data: Path
    launch: Launch
    config: Path | None = None
    flags: dict[str, str] = field(default_factory=dict)
    ready: int = -1
    temporary: str = ""
    tried: int = -1
    continued: Continued | None = None
    accept_lost_audit: bool = False


def _read_arguments(arguments: Sequence[str]) -> _Options:
    data, *rest = arguments
    lasting = [option for option in rest if not option.startswith(_OF_ONE_START)]
    options = _Options(Path(data), Launch((sys.executable, "-P", "-m", _module(), data, *lasting)))
    is_trial = any(option.startswith(f"{TRY}=") for option in rest)
    for argument in rest:
        key, _, value = argument.partition("=")
        if key == "--config":
            options.config = Path(value)
        elif key == "--ready":
            options.ready = int(value)
            os.set_inheritable(options.ready, False)
        elif key == "--until" and not is_trial:
            os.set_inheritable(int(value), False)
            _end_with(int(value))
            options.launch.descriptors = (int(value),)
        elif key == ACCEPT_LOST_AUDIT:
            options.accept_lost_audit = True
        elif key == "--temporary":
            options.temporary = value
        elif key == TRY:
            options.tried = int(value)
        elif key == CONTINUE:
            options.continued = Continued(*map(int, value.split(",")))
            for number in options.continued:
                os.set_inheritable(number, False)
        elif key != "--until":
            options.flags[key] = value
    return options


def main(arguments: Sequence[str]) -> int:
    """Run ``python -m dios.node.daemon DATA [OPTIONS] [key=value …]``, where each pair is a setting.

    Options are ``--config=FILE``; ``--ready=FD``, where the node reports that it serves, or its error;
    ``--until=FD``, a pipe that ends it; ``--temporary=FOLDER``, which it deletes at its end;
    ``--accept-lost-audit``, to start although its audit log is behind a published head. A node gives its
    successor ``--continue=MEMORY,FD``, and tries it before with ``--try=MEMORY``.
    """
    # A request to replace the program must not end the process before it has a handler for that.
    signal.signal(signal.SIGUSR2, lambda _number, _frame: None)
    # The modules of a daemon live until its end: looking for garbage among them takes a tenth of the start.
    gc.disable()
    options = _read_arguments(arguments)
    ready = options.ready

    def tell(word: str) -> None:
        nonlocal ready
        if ready >= 0:
            with contextlib.suppress(OSError):
                os.write(ready, word.encode() + b"\n")
            os.close(ready)
            ready = -1
        elif word != "ready":
            sys.stderr.write(f"dios-node: {word}\n")

    def recovering(done: int, every: int) -> None:
        if ready >= 0:
            with contextlib.suppress(OSError):
                os.write(ready, b"%s%d %d\n" % (_RECOVERING, done, every))

    if options.continued is not None:
        HangAlarm().install()  # for the alarm that the predecessor has set
    try:
        settings = load(options.data, config=options.config, flags=options.flags)
        if options.tried >= 0:
            _rehearse(options.tried, settings)
            return 0
        run(
            settings,
            lambda: tell("ready"),
            recovering,
            options.launch,
            options.continued,
            accept_lost_audit=options.accept_lost_audit,
        )
    except KeyboardInterrupt:
        return 130
    except (Exception, BaseExceptionGroup) as caught:
        error = unwrap_group(caught)
        if not isinstance(error, DiosError | OSError):
            # The folder with the log stays for the program that has started this node, and deletes it.
            tell("an unexpected error; see the node's log")
            raise
        tell(str(error))
        return 1
    if options.temporary:
        _delete(options.temporary)
    return 0


def _rehearse(memory: int, settings: Settings) -> None:
    """Do everything that can fail in a successor and touches nothing outside of this process."""
    # Imported late: a daemon that starts loads these later.
    from dios.host.loop.entropy import Entropy  # noqa: PLC0415 - see above
    from dios.node import serve  # noqa: F401, PLC0415 - every module of a daemon must load
    from dios.node.continuation import receive  # noqa: PLC0415 - see above

    predecessor = receive(memory, settings)
    predecessor.state(Entropy())
    if predecessor.host.port is not None:
        from dios.node import cluster_port  # noqa: F401, PLC0415 - likewise


def _module() -> str:
    """Return the name of the module that runs as the daemon."""
    spec = sys.modules["__main__"].__spec__
    return "dios.node.daemon" if spec is None else spec.name


def _delete(folder: str) -> None:
    """Delete the folder of a node that belongs to one program, with the node's data."""
    # Imported late: other nodes do not need it.
    import shutil  # noqa: PLC0415 - see above
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - the same

    # A file system may wait for milliseconds when it removes a folder, and a store has hundreds of them.
    innermost = [path for path, folders, _ in os.walk(folder) if not folders]
    with ThreadPoolExecutor(_DELETING_THREADS) as threads:
        for path in innermost:
            threads.submit(shutil.rmtree, path, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Works on one host for ``dios up --hosts``: looks, installs, starts, waits and removes.

``dios.node.bringup.ssh`` sends the text of this file to the host's Python. Nothing is installed there before,
so this file imports only the standard library. Standard input has one line of JSON, the request, then the
bytes of the uploaded files. It stays open until the answer has arrived: its end means that the caller is
gone, and ends this program with all that it has started for the request. Standard output gets lines of JSON.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import platform
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, TypeAlias

# mypy reads these as constants; Final would be one more import of typing on hosts.
GREETING = "dios-bringup-1"
MADE_BY = "made-by-dios-up"
UNIT = "dios-node.service"
HEADER_BYTES_MAX = 1 << 20
PIECE_BYTES = 1 << 20
PIP_OPTIONS = ("--disable-pip-version-check", "--no-input", "--progress-bar=off")
LINES_KEPT = 12
START_SECONDS = 60.0
STOP_SECONDS = 30.0
POLL_SECONDS = 0.2

Answer: TypeAlias = dict[str, object]
Request: TypeAlias = Mapping[str, object]


class FailedError(Exception):
    """The request cannot be served; the message has the reason and the next step."""


# -- the conversation -------------------------------------------------------------------------------
_children: set[int] = set()
_output = threading.Lock()


def _send(message: Answer) -> None:
    with _output:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def report(text: str) -> None:
    """Send a step's name, which the caller shows while it waits."""
    _send({"progress": text[:200]})


def _watch_caller() -> None:
    """End this program, and what it started, when standard input ends."""
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    for child in list(_children):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGTERM)
    os._exit(1)


def run(command: list[str], *, stdin: str = "", seen: Callable[[str], None] = lambda _: None) -> str:
    """Run a command to its end and return its output; call ``seen`` with each line of it."""
    # In a group of its own, so that pip's own children end with it if the caller disappears.
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        _children.add(process.pid)
        try:
            assert process.stdin is not None  # noqa: S101 - for mypy: both are pipes
            assert process.stdout is not None  # noqa: S101 - the same
            with contextlib.suppress(BrokenPipeError), process.stdin:
                process.stdin.write(stdin)
            lines: list[str] = []
            for line in process.stdout:
                lines.append(line)
                seen(line.strip())
            status = process.wait()
        finally:
            _children.discard(process.pid)
    if status:
        tail = "".join(lines[-LINES_KEPT:]).strip()
        shown = " ".join(command[:6])
        raise FailedError(f"`{shown}` ended with status {status}: {tail or 'it printed nothing'}")
    return "".join(lines)


# -- places -----------------------------------------------------------------------------------------
class Places:
    """The paths below the prefix, where everything is that ``dios up --hosts`` makes, except for the unit."""

    def __init__(self, prefix: str) -> None:
        usual = "/opt/dios" if os.geteuid() == 0 else "~/.local/share/dios"
        self.prefix = Path(prefix or usual).expanduser().absolute()
        self.marker = self.prefix / MADE_BY
        self.environment = self.prefix / "env"
        self.wheels = self.prefix / "wheels"
        self.data = self.prefix / "data"
        self.supervisor = self.prefix / "supervisor.pid"
        self.log = self.prefix / "supervisor.log"

    def python(self) -> str:
        """Return the environment's interpreter, by the link, so that a restart takes a new environment."""
        return str(self.environment / "bin" / "python")

    def node_command(self, *words: str) -> list[str]:
        """Return a command line of ``dios-node``."""
        return [self.python(), "-P", "-m", "dios.cli.nodes.daemon", *words]

    def make(self) -> None:
        """Make the prefix, and mark it as made by this program."""
        if self.prefix.exists() and not self.marker.exists() and any(self.prefix.iterdir()):
            raise FailedError(
                f"{self.prefix} has files that `dios up` did not make. Choose another with --prefix."
            )
        # As root, a sandboxed task runs as another user and must reach the interpreter below the prefix.
        mode = 0o755 if os.geteuid() == 0 else 0o700
        self.prefix.mkdir(mode=mode, parents=True, exist_ok=True)
        self.marker.touch()


@contextlib.contextmanager
def locked(places: Places) -> Iterator[None]:
    """Exclude another ``dios up`` or ``dios down`` on this host."""
    with (places.prefix / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FailedError(
                "another `dios up` or `dios down` works on this host. Wait for its end."
            ) from None
        yield


# -- look -------------------------------------------------------------------------------------------
def look(request: Request) -> Answer:
    """Return the state of this host; change nothing."""
    places = Places(str(request["prefix"]))
    status = _status(places)
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "glibc": _glibc(),
        "venv": bool(importlib.util.find_spec("venv")) and bool(importlib.util.find_spec("ensurepip")),
        "user": pwd.getpwuid(os.geteuid()).pw_name,
        "address": _address_towards(str(request["network"])) if request["network"] else _reached_at(),
        "prefix": str(places.prefix),
        "units": _units(),
        "environment": _installed(places),
        "version": str(status.get("version", "")),
        "running": bool(status.get("running")),
        "member": _member(places),
        "files": {path.name: _digest(path) for path in sorted(places.wheels.glob("*.whl"))},
    }


def _glibc() -> str:
    """Return the version of glibc, or an empty text for another C library."""
    with contextlib.suppress(ValueError, OSError):
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")[2]
    return ""


def _reached_at() -> str:
    """Return the address of this host to which the caller's ssh connected, or an empty text."""
    words = os.environ.get("SSH_CONNECTION", "").split()
    return words[2] if len(words) == 4 else ""


def _address_towards(address: str) -> str:
    """Return this host's address on the way to another one; nothing is sent."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            return str(probe.getsockname()[0])
    except OSError as error:
        raise FailedError(f"this host has no way to {address}: {error.strerror}. Check --network.") from None


def _units() -> str:
    """Return the manager that keeps services of this user running: ``system``, ``user``, or none."""
    if os.geteuid() == 0:
        return "system" if Path("/run/systemd/system").is_dir() else ""
    with contextlib.suppress(OSError):
        asked = subprocess.run(
            ["systemctl", "--user", "is-system-running"], capture_output=True, text=True, check=False
        )
        if asked.stdout.strip() in {"running", "degraded", "starting"}:
            return "user"
    return ""


def _installed(places: Places) -> str:
    with contextlib.suppress(OSError):
        target = places.environment.readlink().name
        if (places.prefix / target / "complete").exists():
            return target.removeprefix("env-")
    return ""


def _member(places: Places) -> Answer:
    """Return the name, the address and the cluster of the node in the data directory, or nothing."""
    try:
        text = (places.data / "identity" / "authority.pem").read_text(encoding="ascii")
        settings = tomllib.loads((places.data / "node.toml").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    body = re.sub(r"-----[A-Z ]+-----|\s", "", text)
    return {
        "name": str(settings.get("name", "")),
        "address": str(settings.get("advertise") or settings.get("listen", "")),
        "cluster": hashlib.sha256(base64.b64decode(body)).hexdigest(),
    }


def _status(places: Places) -> Answer:
    """Return the report of ``dios-node status``; empty if there is none."""
    return _asked(places, "status") if _installed(places) and _answers(places) else {}


def _asked(places: Places, *words: str) -> Answer:
    """Return the JSON object that a command of ``dios-node`` prints; empty if it fails."""
    asked = subprocess.run(
        places.node_command(*words, "--data", str(places.data), "--json"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    with contextlib.suppress(ValueError):
        told: object = json.loads(asked.stdout)
        if isinstance(told, dict):
            return told
    return {}


def _answers(places: Places) -> bool:
    """Return True if a process accepts connections at the node's socket."""
    here = os.open(places.data, os.O_PATH | os.O_DIRECTORY) if places.data.is_dir() else -1
    if here < 0:
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            # By the descriptor, because the path of a socket has at most 107 bytes.
            probe.connect(f"/proc/self/fd/{here}/node.sock")
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(here)


# -- install ----------------------------------------------------------------------------------------
def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def receive(request: Request, source: BinaryIO, places: Places) -> None:
    """Store the files that follow the request, each under its own name, completely or not at all."""
    files = request.get("files", [])
    assert isinstance(files, list)  # noqa: S101 - the request is the caller's own
    if not files:
        return
    places.make()
    places.wheels.mkdir(exist_ok=True)
    for name, size in files:
        if not re.fullmatch(r"[A-Za-z0-9_.+-]+\.whl", name):
            raise FailedError(f"{name!r} is not the name of a wheel")
        fresh, left = places.wheels / f".{name}.{os.getpid()}", int(size)
        try:
            with fresh.open("wb") as file:
                while left and (piece := source.read(min(left, PIECE_BYTES))):
                    file.write(piece)
                    left -= len(piece)
            if left:
                raise FailedError(f"{name} did not arrive completely: the connection ended")
            fresh.replace(places.wheels / name)
        finally:
            fresh.unlink(missing_ok=True)


def install(request: Request) -> Answer:
    """Make the environment with the uploaded wheels, unless it is there; then let ``env`` name it."""
    places, wanted = Places(str(request["prefix"])), str(request["environment"])
    places.make()
    with locked(places):
        if _installed(places) == wanted:
            return {"changed": False}
        folder = places.prefix / f"env-{wanted}"
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            report("making the environment")
            run([sys.executable, "-m", "venv", str(folder)])
            pinned = folder / "requirements.txt"
            pinned.write_text(str(request["requirements"]))
            pip = [str(folder / "bin" / "python"), "-m", "pip", "install", *PIP_OPTIONS, "--require-hashes"]
            sources = ["--no-index", "--find-links", str(places.wheels)]
            run([*pip, *sources, "--requirement", str(pinned)], seen=lambda line: report(f"pip: {line}"))
            (folder / "complete").touch()
        before = places.environment.readlink().name if places.environment.is_symlink() else ""
        fresh = places.prefix / ".env.new"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(folder.name)
        fresh.replace(places.environment)
        # A running node still loads modules from the environment before; older ones have no user.
        for old in places.prefix.glob("env-*"):
            if old.name not in {before, folder.name}:
                shutil.rmtree(old, ignore_errors=True)
    return {"changed": True}


# -- start ------------------------------------------------------------------------------------------
def token(request: Request) -> Answer:
    """Return a new join token of this host's node, which must run."""
    places = Places(str(request["prefix"]))
    words = [word for key in ("valid", "uses", "role") for word in (f"--{key}", str(request[key]))]
    told = _asked(places, "invite", *words)
    if "token" not in told:
        raise FailedError(
            f"the node in {places.data} made no invitation; `dios-node invite` there says why. Name an "
            "authority of the cluster among the hosts."
        )
    return {"token": str(told["token"]), "address": str(told["address"])}


def start(request: Request) -> Answer:
    """Make the node a member if it is none, start it by a unit or a supervisor, and wait until it answers."""
    places = Places(str(request["prefix"]))
    with locked(places):
        if _answers(places):
            return {"started": False, "by": _started_by(places)}
        if not _member(places):
            places.data.mkdir(mode=0o700, exist_ok=True)
            (places.data / "node.toml").write_text(str(request["settings"]), encoding="utf-8")
            joining = {
                "data": str(places.data),
                "join": str(request.get("join", "")),
                "token": str(request.get("token", "")),
            }
            report("joining the cluster" if joining["join"] else "making the cluster")
            # The token goes through a pipe: neither arguments nor environment nor a file show it.
            run([places.python(), "-P", "-m", "dios.node.bringup.first_start"], stdin=json.dumps(joining))
        report("starting the node")
        manager = _units()
        if manager:
            _start_unit(places, manager)
        else:
            _start_supervisor(places)
        deadline = time.monotonic() + START_SECONDS
        while not _answers(places):
            if time.monotonic() > deadline:
                raise FailedError(
                    f"the node did not answer within {START_SECONDS:.0f} s. Its log: {_log(places, manager)}"
                )
            if not manager and not _supervised(places):
                raise FailedError(f"the node ended at its start: {_last_lines(places.log)}")
            time.sleep(POLL_SECONDS)
        return {"started": True, "by": _started_by(places)}


def _log(places: Places, manager: str) -> str:
    if not manager:
        return str(places.log)
    return f"journalctl {'--user ' if manager == 'user' else ''}-u {UNIT}"


def _last_lines(path: Path) -> str:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return f"{path} cannot be read"
    return "\n".join(lines[-LINES_KEPT:])


def _unit_path(manager: str) -> Path:
    if manager == "system":
        return Path("/etc/systemd/system") / UNIT
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "systemd" / "user" / UNIT


def unit_text(places: Places, manager: str) -> str:
    """Return the unit of the node. ``cluster/systemd`` has units with comments."""
    command = " ".join(places.node_command("start", "--data", str(places.data)))
    wanted_by = "multi-user.target" if manager == "system" else "default.target"
    return f"""\
# {MADE_BY}: `dios up --hosts` writes this file, and `dios down --hosts` removes it.
[Unit]
Description=DIOS node
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={command}
Restart=on-failure
RestartSec=5
KillMode=mixed
TimeoutStopSec=20
UMask=0077
LimitNOFILE=65536
Delegate=cpu memory pids
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native

[Install]
WantedBy={wanted_by}
"""


def _systemctl(manager: str, *words: str) -> str:
    return run(["systemctl", *(["--user"] if manager == "user" else []), *words])


def _start_unit(places: Places, manager: str) -> None:
    path = _unit_path(manager)
    if path.exists() and MADE_BY not in path.read_text(encoding="utf-8", errors="replace"):
        raise FailedError(f"{path} is a unit that `dios up` did not write. Stop and remove it first.")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(unit_text(places, manager), encoding="utf-8")
    if manager == "user":
        # Without lingering the node would end when this user logs out.
        with contextlib.suppress(FailedError):
            run(["loginctl", "enable-linger"])
    _systemctl(manager, "daemon-reload")
    _systemctl(manager, "enable", "--now", UNIT)


def _start_supervisor(places: Places) -> None:
    if _supervised(places):
        return
    command = [places.python(), "-P", "-m", "dios.node.bringup.supervise", str(places.supervisor), "--"]
    log = os.open(places.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        process = subprocess.Popen(
            command + places.node_command("start", "--data", str(places.data)),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    finally:
        os.close(log)
    deadline = time.monotonic() + START_SECONDS
    while not _supervised(places):
        if process.poll() is not None or time.monotonic() > deadline:
            raise FailedError(f"the supervisor did not start: {_last_lines(places.log)}")
        time.sleep(POLL_SECONDS)
    process.returncode = 0


def _supervised(places: Places) -> int:
    """Return the process of the supervisor, which holds a lock on its file; 0 if there is none."""
    try:
        with places.supervisor.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(file.read(32) or b"0")
    except (FileNotFoundError, ValueError):
        pass
    return 0


def _started_by(places: Places) -> str:
    if _supervised(places):
        return "supervisor"
    manager = _units()
    return f"systemd ({manager})" if manager and _unit_path(manager).exists() else "another program"


# -- wait -------------------------------------------------------------------------------------------
def wait(request: Request) -> Answer:
    """Wait until this host's node sees all named nodes alive."""
    places = Places(str(request["prefix"]))
    names = request["names"]
    assert isinstance(names, list)  # noqa: S101 - the request is the caller's own
    deadline = time.monotonic() + START_SECONDS
    while True:
        status = _status(places)
        nodes = status.get("nodes", {})
        missing = {str(name) for name in names if not isinstance(nodes, dict) or nodes.get(name) != "alive"}
        if status and not missing:
            return {"version": str(status.get("version", ""))}
        if time.monotonic() > deadline:
            raise FailedError(
                f"the node does not see {', '.join(sorted(missing)) or 'the cluster'} after "
                f"{START_SECONDS:.0f} s. The hosts must reach each other's port: see {places.data}/node.toml"
            )
        report(f"looks for {', '.join(sorted(missing))}")
        time.sleep(POLL_SECONDS)


# -- stop -------------------------------------------------------------------------------------------
def stop(request: Request) -> Answer:
    """Stop the node and remove its unit; with ``delete`` also the data, the environments and the wheels."""
    places = Places(str(request["prefix"]))
    if not places.marker.exists():
        return {"stopped": False, "deleted": False, "there": False}
    with locked(places):
        ran = _answers(places)
        report("stopping the node")
        manager = _units()
        path = _unit_path(manager) if manager else None
        if path is not None and path.exists() and MADE_BY in path.read_text(encoding="utf-8"):
            _systemctl(manager, "disable", "--now", UNIT)
            path.unlink()
            _systemctl(manager, "daemon-reload")
        _stop_supervisor(places)
        if _answers(places):
            run(places.node_command("stop", "--data", str(places.data)))
        if request["delete"]:
            report("deleting the data and the environment")
            _delete(places)
    if request["delete"]:
        for name in ("lock", MADE_BY):
            (places.prefix / name).unlink(missing_ok=True)
        # Only an empty directory is removed: it may have files of the user.
        with contextlib.suppress(OSError):
            places.prefix.rmdir()
    return {"stopped": ran, "deleted": bool(request["delete"]), "there": True}


def _stop_supervisor(places: Places) -> None:
    number = _supervised(places)
    if not number:
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(number, signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    while _supervised(places):
        if time.monotonic() > deadline:
            raise FailedError(f"the supervisor, process {number}, does not end. Look at {places.log}.")
        time.sleep(POLL_SECONDS)


def _delete(places: Places) -> None:
    for folder in [places.data, places.wheels, *places.prefix.glob("env-*")]:
        shutil.rmtree(folder, ignore_errors=True)
    for file in (places.environment, places.supervisor, places.log):
        file.unlink(missing_ok=True)


# -- the program ------------------------------------------------------------------------------------
SERVED: dict[str, Callable[[Request], Answer]] = {
    "look": look,
    "install": install,
    "token": token,
    "start": start,
    "wait": wait,
    "stop": stop,
}


def main() -> int:
    """Serve the request on standard input."""
    source = sys.stdin.buffer
    sys.stdout.write(f"{GREETING}\n")
    sys.stdout.flush()
    os.umask(0o022 if os.geteuid() == 0 else 0o077)
    try:
        request = json.loads(source.readline(HEADER_BYTES_MAX))
        receive(request, source, Places(str(request["prefix"])))
        threading.Thread(target=_watch_caller, daemon=True).start()
        _send({request["do"]: SERVED[request["do"]](request)})
    except FailedError as error:
        _send({"failed": str(error)})
        return 1
    except OSError as error:
        _send({"failed": f"{error.filename or 'the host'}: {error.strerror or error}"})
        return 1
    return 0


if __name__ == "__main__":
    sys.stdout.flush()
    status = main()
    sys.stdout.flush()
    # The thread that watches the caller is inside a read that nothing else would end.
    os._exit(status)

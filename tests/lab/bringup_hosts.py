"""``make up-test``: ``dios up --hosts`` on four real ssh servers of this machine, step by step.

Each server has a loopback address and a home of its own, as four machines have. Everything that this program
starts is ended at its end. Exit status 0 when all held, 1 when something did not, 3 without an ssh server.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
SSHD: Final = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin")
PORT: Final = 22_022
PREFIX: Final = "~/dios"
NODES: Final = ("n1", "n2", "n3")
NO_SERVER: Final = 3
WAIT_SECONDS: Final = 120.0
TOKEN: Final = b"dios-join-1."


class FailedError(Exception):
    """A step did not do what it should."""


def step(title: str) -> None:
    """Say what comes next."""
    sys.stdout.write(f"{time.monotonic() - BEGAN:6.1f} s  {title}\n")
    sys.stdout.flush()


BEGAN: Final = time.monotonic()


def require(condition: object, description: str) -> None:
    """Raise FailedError if a condition does not hold."""
    if not condition:
        raise FailedError(description)


def wait(condition: Callable[[], bool], description: str) -> None:
    """Wait for a condition, or raise FailedError."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        require(time.monotonic() < deadline, f"not within {WAIT_SECONDS:g} s: {description}")
        time.sleep(0.1)


def home(folder: Path, name: str) -> Path:
    """The home directory of a host."""
    return folder / "homes" / name


@contextlib.contextmanager
def servers(folder: Path, names: tuple[str, ...]) -> Iterator[Path]:
    """Run an ssh server for each name; yield the configuration for the client."""
    require(SSHD, "sshd")
    Path("/run/sshd").mkdir(exist_ok=True)
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True)
    shutil.copy(folder / "user.pub", folder / "authorized")
    public = (folder / "host.pub").read_text().split()
    client = [
        f"IdentityFile {folder}/user",
        "IdentitiesOnly yes",
        f"UserKnownHostsFile {folder}/known",
        f"Port {PORT}",
    ]
    running: list[subprocess.Popen[bytes]] = []
    try:
        for number, name in enumerate(names, start=1):
            address = f"127.0.0.{number}"
            home(folder, name).mkdir(parents=True, mode=0o755)
            lines = [
                f"ListenAddress {address}",
                f"Port {PORT}",
                f"HostKey {folder}/host",
                "PidFile none",
                "UsePAM no",
                "PasswordAuthentication no",
                "PermitRootLogin prohibit-password",
                "StrictModes no",
                f"AuthorizedKeysFile {folder}/authorized",
                f"SetEnv HOME={home(folder, name)}",
            ]
            (folder / f"sshd.{name}").write_text("\n".join(lines) + "\n")
            with (folder / "known").open("a") as known:
                known.write(f"[{address}]:{PORT} {public[0]} {public[1]}\n")
            client += [f"Host {name}", f"HostName {address}"]
            with (folder / f"log.{name}").open("wb") as log:
                command = [str(SSHD), "-D", "-e", "-f", str(folder / f"sshd.{name}")]
                running.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log))
        (folder / "client").write_text("\n".join(client) + "\n")
        yield folder / "client"
    finally:
        for server in running:
            server.terminate()
            server.wait()


class Dios:
    """The command ``dios`` of this checkout, with the ssh client's configuration."""

    def __init__(self, folder: Path, configuration: Path, wheels: Path | None) -> None:
        self.folder: Final = folder
        self._ssh: Final = f"ssh -F {configuration}"
        self._options: Final = ["--wheelhouse", str(wheels)] if wheels else []

    def command(self, verb: str, hosts: tuple[str, ...], *words: str) -> list[str]:
        """The command line of ``dios up`` or ``dios down``."""
        options = [*self._options, "--extras", "none"] if verb == "up" else []
        program = [sys.executable, "-m", "dios.cli.main", verb, "--hosts", ",".join(hosts)]
        return [*program, "--ssh", self._ssh, "--prefix", PREFIX, *options, "--json", *words]

    def __call__(self, verb: str, hosts: tuple[str, ...], *words: str) -> list[dict[str, object]]:
        """The rows that the command prints; FailedError when it fails."""
        done = subprocess.run(self.command(verb, hosts, *words), capture_output=True, text=True, check=False)
        require(done.returncode == 0, f"dios {verb} ended with status {done.returncode}: {done.stderr}")
        rows: list[dict[str, object]] = json.loads(done.stdout)["nodes" if verb == "up" else "hosts"]
        return rows

    def there(self, host: str, *words: str) -> str:
        """What a command of the installed ``dios`` prints on a host."""
        line = f"{PREFIX}/env/bin/dios {' '.join(words)} --node {PREFIX}/data"
        command = [*self._ssh.split(), host, line]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        require(done.returncode == 0, f"{line} on {host}: {done.stderr}")
        return done.stdout

    def alive(self, host: str) -> list[str]:
        """The nodes that a host's node sees alive."""
        rows = json.loads(self.there(host, "node", "ls", "--json"))
        return sorted(row["name"] for row in rows if row["status"] == "alive")

    def process(self, host: str, name: str = "data/node.pid") -> int:
        """The process id in a file of a host; 0 without one."""
        with contextlib.suppress(OSError, ValueError):
            return int((home(self.folder, host) / "dios" / name).read_text().split()[0])
        return 0


@contextlib.contextmanager
def watched_arguments() -> Iterator[list[str]]:
    """Yield a list that gets the command lines and environments in which a join token was seen."""
    seen: list[str] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.01):
            for entry in Path("/proc").glob("[0-9]*"):
                for file in ("cmdline", "environ"):
                    with contextlib.suppress(OSError):
                        text = (entry / file).read_bytes()
                        if TOKEN in text:
                            seen.append(f"{file} of process {entry.name}")

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


def interrupted(dios: Dios, hosts: tuple[str, ...], new: str) -> None:
    """Interrupt ``dios up`` while it installs on a new host; it states where each host is."""
    process = subprocess.Popen(
        dios.command("up", hosts),
        stderr=subprocess.PIPE,
        text=True,
        # Where this program is a background job of a shell, its children ignore SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509 - one thread
    )
    place = home(dios.folder, new) / "dios"
    wait(lambda: any(place.glob("env-*/bin/pip")), "the installation on a new host begins")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=WAIT_SECONDS)
    require(process.returncode == 130, f"after Ctrl-C the status was {process.returncode}: {errors}")
    require(f"{new}: reached" in errors, f"after Ctrl-C nothing was stated: {errors}")
    require("n1: " in errors, f"n1 was not stated: {errors}")
    wait(lambda: not lasting(place), "no process works on the new host")


def lasting(place: Path) -> list[str]:
    """The processes whose command line names a path below ``place``."""
    pids = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if os.fsencode(place) in entry.read_bytes():
                pids.append(entry.parent.name)
    return pids


def tried(dios: Dios) -> None:
    """The whole story; raises FailedError."""
    step("three hosts become a cluster")
    with watched_arguments() as seen:
        rows = dios("up", NODES, "--racks", "2", "--pool-size", "1")
    require([row["state"] for row in rows] == ["made"] * 3, f"the hosts are {rows}")
    require({row["by"] for row in rows} == {"supervisor"}, f"the hosts are {rows}")
    require(not seen, f"a join token was in {seen}")
    listing = subprocess.run(
        ["grep", "-rlF", TOKEN.decode(), "--include=*", str(dios.folder / "homes")],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split()
    require(
        not [path for path in listing if "/env-" not in path and "/wheels/" not in path],
        f"token in {listing}",
    )
    require(dios.alive("n3") == list(NODES), f"n3 sees {dios.alive('n3')}")
    step("a file is stored at n1 and read at n3")
    source = home(dios.folder, "n1") / "file.txt"
    source.write_text("one fish two fish\n")
    dios.there("n1", "group", "create", "fleet")
    dios.there("n1", "put", str(source), "--group", "fleet")
    step("a second run changes nothing")
    rows = dios("up", NODES)
    require([row["state"] for row in rows] == ["was running"] * 3, f"the second run said {rows}")
    step("n2's process is killed; its supervisor starts it again")
    before = dios.process("n2")
    os.kill(before, signal.SIGKILL)
    wait(lambda: dios.process("n2") not in {0, before}, "a new process of n2")
    wait(lambda: dios.alive("n1") == list(NODES), "n1 sees all nodes")
    step("n3's supervisor and process are killed; dios up starts them again")
    for file in ("supervisor.pid", "data/node.pid"):
        os.kill(dios.process("n3", file), signal.SIGKILL)
    rows = dios("up", NODES)
    require([row["state"] for row in rows] == ["was running"] * 2 + ["started"], f"the hosts are {rows}")
    step("Ctrl-C while a fourth host is installed")
    interrupted(dios, (*NODES, "n4"), "n4")
    step("the same command continues")
    rows = dios("up", (*NODES, "n4"))
    require([row["state"] for row in rows] == ["was running"] * 3 + ["made"], f"the hosts are {rows}")
    require(dios.alive("n4") == [*NODES, "n4"], f"n4 sees {dios.alive('n4')}")
    step("all are stopped, and started again with their data")
    rows = dios("down", (*NODES, "n4"))
    require(all(row["stopped"] and not row["deleted"] for row in rows), f"dios down said {rows}")
    require(not lasting(dios.folder / "homes"), "a process is left")
    dios("up", (*NODES, "n4"))
    text = dios.there("n1", "get", "file.txt")
    require(text == "one fish two fish\n", f"the file has {text!r}")
    step("all is deleted")
    rows = dios("down", (*NODES, "n4"), "--delete")
    require(all(row["deleted"] for row in rows), f"dios down said {rows}")
    left = [str(path) for name in (*NODES, "n4") for path in home(dios.folder, name).glob("dios/*")]
    require(not left, f"left on the hosts: {left}")
    require(not lasting(dios.folder / "homes"), "a process is left")


def make_wheels(folder: Path) -> Path:
    """Wheels of all that dios needs, for a machine without a package index."""
    step("making wheels")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--wheel-dir",
        str(folder / "wheels"),
        str(ROOT),
    ]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    return folder / "wheels"


def main() -> int:
    """Try ``dios up --hosts``."""
    parser = argparse.ArgumentParser(prog="make up-test", description=__doc__)
    parser.add_argument("--index", action="store_true", help="take dependencies from the package index")
    chosen = parser.parse_args()
    if SSHD is None or os.geteuid():
        step("needs root and sshd (apt-get install openssh-server): nothing was tried")
        return NO_SERVER
    with tempfile.TemporaryDirectory(prefix="dios-up-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        wheels = None if chosen.index else make_wheels(folder)
        with servers(folder, (*NODES, "n4")) as configuration:
            dios = Dios(folder, configuration, wheels)
            try:
                tried(dios)
            except FailedError as error:
                step(f"FAILED: {error}")
                return 1
            finally:
                with contextlib.suppress(FailedError):
                    dios("down", (*NODES, "n4"), "--delete")
    step("everything held")
    return 0


if __name__ == "__main__":
    sys.exit(main())

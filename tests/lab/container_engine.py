"""A container engine of its own for ``make docker-test``, and a base image without a registry.

The engine runs in new namespaces for processes, mounts and networks. They end with its first process, and
that ends with this program, so no container, bridge, mount or forwarding of packets is left on the machine or
seen by it.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.support.lab.namespaces import killed_with_parent

BASE: Final = "dios-base:local"
PACKAGES: Final = {
    "dockerd": "docker.io",
    "docker": "docker.io",
    "docker-compose": "docker-compose",
    "debootstrap": "debootstrap",
    "iptables": "iptables",
    "ip": "iproute2",
    "unshare": "util-linux",
    "setpriv": "util-linux",
}
"""The programs that are needed, and Debian's packages that have them. The engine answers for names of
containers by rules of iptables inside them."""
IN_THE_BASE: Final = "python3,python3-venv,ca-certificates"
START_SECONDS: Final = 60.0
END_SECONDS: Final = 30.0
CGROUPS: Final = Path("/sys/fs/cgroup")
NAMESPACES: Final = ("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")


class EngineError(Exception):
    """The engine or its base image cannot be had here; the text says why."""


def missing() -> str | None:
    """Return the reason why this machine cannot run an engine, or None if it can."""
    if os.geteuid():
        return "an engine needs root"
    packages = {package for program, package in PACKAGES.items() if shutil.which(program) is None}
    return f"apt-get install --no-install-recommends {' '.join(sorted(packages))}" if packages else None


@contextlib.contextmanager
def private_engine() -> Iterator[str]:
    """Run an engine, and yield the value of DOCKER_HOST for it.

    Raises:
        EngineError: it did not start.
    """
    with tempfile.TemporaryDirectory(prefix="dios-engine-") as name:
        folder = Path(name)
        with (folder / "log").open("wb") as log:
            engine = subprocess.Popen(
                [*NAMESPACES, "--net", "--ipc", "sh", "-c", _start(folder)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C first lets the containers be taken down
            )
        address = f"unix://{folder}/socket"
        try:
            _wait_until_it_answers(engine, address, folder / "log")
            yield address
        finally:
            _end(engine)
            remove_cgroups(folder.name)


def _start(folder: Path) -> str:
    """Return the shell command that is the first process of the namespaces: it ends with the engine.

    The engine is stopped at the end of standard input, so it also ends if this program is killed. It has no
    default network, so that an image is built without one, and no rules of a firewall. Compose gives each
    project a bridge of its own.
    """
    engine = (
        f"dockerd --host unix://{folder}/socket --data-root {folder}/data --exec-root {folder}/exec"
        f" --pidfile {folder}/pid --cgroup-parent /{folder.name}"
        " --bridge=none --iptables=false --ip6tables=false"
    )
    return f"exec 3<&0; ip link set lo up; {engine} & engine=$!; (cat <&3; kill $engine) & wait $engine"


def _end(engine: subprocess.Popen[bytes]) -> None:
    assert engine.stdin is not None  # it was opened as a pipe
    engine.stdin.close()
    try:
        engine.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        engine.kill()
        engine.wait()


def _wait_until_it_answers(engine: subprocess.Popen[bytes], address: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while subprocess.run(["docker", "--host", address, "info"], capture_output=True, check=False).returncode:
        if engine.poll() is not None or time.monotonic() > deadline:
            raise EngineError(f"the engine does not start:\n{log.read_text()[-2000:]}")
        time.sleep(0.2)


def remove_cgroups(name: str) -> None:
    """Remove the engine's control groups, as soon as the kernel has ended all of their processes."""
    deadline = time.monotonic() + END_SECONDS
    while groups := [
        path for top in (CGROUPS, *CGROUPS.glob("*")) for path in top.glob(name) if path.is_dir()
    ]:
        for group in groups:
            for folder, _, _ in os.walk(group, topdown=False):
                with contextlib.suppress(OSError):  # a process in it is still ending
                    Path(folder).rmdir()
        if time.monotonic() > deadline:
            raise EngineError(f"control groups are left: {', '.join(map(str, groups))}")
        time.sleep(0.1)


def import_base(address: str) -> None:
    """Make the image BASE: a minimal Debian of this machine's release, with Python.

    Raises:
        EngineError: debootstrap failed, or this machine's release has another Python than this program's,
            for which wheels are made.
    """
    suite = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    with tempfile.TemporaryDirectory(prefix="dios-base-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        # In namespaces of its own, what debootstrap mounts and starts ends with it, also after Ctrl-C.
        outcome = subprocess.run(
            killed_with_parent(
                [*NAMESPACES, "debootstrap", "--variant=minbase", f"--include={IN_THE_BASE}", suite, name]
            ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if outcome.returncode:
            raise EngineError(f"debootstrap failed:\n{outcome.stdout[-1000:]}{outcome.stderr[-1000:]}")
        python = (folder / "usr/bin/python3").readlink().name
        if python != f"python{sys.version_info.major}.{sys.version_info.minor}":
            raise EngineError(f"{suite} has {python}, and this is {sys.version}; set PYTHON for `make setup`")
        archive = ["tar", "--create", "--directory", name, "--exclude=./var/cache/apt/archives/*.deb", "."]
        with subprocess.Popen(archive, stdout=subprocess.PIPE) as tar:
            imported = subprocess.run(
                ["docker", "--host", address, "import", "-", BASE],
                stdin=tar.stdout,
                capture_output=True,
                text=True,
                check=False,
            )
        if imported.returncode or tar.returncode:
            raise EngineError(f"the base image cannot be imported: {imported.stderr}")

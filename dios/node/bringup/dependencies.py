"""Gathers the wheels that hosts install besides this package, and pins them by their hashes.

pip chooses and downloads them here, for the Python, the processor and the C library of the hosts, from the
index that this machine's configuration names, or from a folder. No code of them runs here. The wheels of an
index must be those of a lock, by default of ``hosts.lock``, which is part of each release. Hosts then need no
index, and install exactly these files.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from dios.errors import DiosError, InvalidError
from dios.node.bringup.ssh import Upload
from dios.node.bringup.wheel import Wheel

OWN_LOCK: Final = Path(__file__).with_name("hosts.lock")
"""The versions and hashes with which this version was released."""

_LINES_KEPT: Final = 6
_LOCKED: Final = re.compile(r"^(([\w.-]+)==[^\\\n]*?) *(?:\\\n)? *((?:--hash(?:.*\\\n)*.*)?)$", re.MULTILINE)
"""A package of a lock: its requirement, which is its name, its version and a condition; and its hashes."""
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})\b")
_GLIBC_MINOR_MIN: Final = 5
"""manylinux1 promises glibc 2.5, the oldest of all promises."""

_ALIASES: Final = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
"""Older names of promises, by the minor version of glibc."""


class GatheringError(DiosError):
    """The wheels for hosts cannot be gathered; the message has pip's reason and the next step."""


class Platform(NamedTuple):
    """The things of a host by which pip chooses wheels."""

    python: str
    """The version without its last number, such as 3.11."""
    machine: str
    glibc: str
    """The version of glibc, such as 2.36; empty for another C library, which is taken for musl 1.2."""

    def tags(self) -> Iterator[str]:
        """Yield the names of platforms whose wheels work there, the best first."""
        if not self.glibc:
            yield from (f"musllinux_1_{minor}_{self.machine}" for minor in (2, 1))
            return
        for minor in range(int(self.glibc.split(".")[1]), _GLIBC_MINOR_MIN - 1, -1):
            yield f"manylinux_2_{minor}_{self.machine}"
            if minor in _ALIASES:
                yield f"{_ALIASES[minor]}_{self.machine}"

    def __str__(self) -> str:
        return (
            f"Python {self.python} on {self.machine} with {f'glibc {self.glibc}' if self.glibc else 'musl'}"
        )


class Lock(NamedTuple):
    """The packages that may be installed: their versions as pip's constraints, and by name their digests."""

    constraints: str
    digests: Mapping[str, frozenset[str]]

    def check(self, wheel: Upload) -> None:
        """Raise GatheringError for a wheel whose bytes the lock does not have."""
        if hashlib.sha256(wheel.data).hexdigest() not in self.digests.get(_normal(wheel.name), ()):
            raise GatheringError(
                f"{wheel.name} is not a wheel of the lock: its hash is another one, or the lock lacks this "
                "package. Nothing was uploaded. Find out who changed the package, or name another lock with "
                "--lock."
            )


def read_lock(path: Path) -> Lock:
    """Read a file of pip's requirements with versions and hashes. Raise InvalidError if it has none."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidError(f"cannot read the lock {path}: {error}. Name another file with --lock.") from None
    rows = _LOCKED.findall(text)
    digests: dict[str, frozenset[str]] = {}
    for _, name, hashes in rows:
        digests[_normal(name)] = digests.get(_normal(name), frozenset()) | set(_HASH.findall(hashes))
    if not digests or not all(digests.values()):
        raise InvalidError(
            f"{path} is not a lock: each package needs a line NAME==VERSION with --hash=sha256:… . Make one "
            "with `pip-compile --generate-hashes`, or leave --lock out."
        )
    return Lock("".join(f"{requirement}\n" for requirement, _, _ in rows), digests)


def _normal(name: str) -> str:
    """Return the name of a package, or of a wheel's package, as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name.partition("-")[0] if name.endswith(".whl") else name).lower()


def gather(
    own: Wheel,
    platform: Platform,
    *,
    extras: str,
    folder: Path | None,
    lock: Lock | None,
    report: Callable[[str], None] = lambda _: None,
) -> list[Upload]:
    """Return the wheels that this package with extras needs on a platform, without its own.

    They come from ``folder`` alone, or from the configured index if it is None. With a lock, their versions
    and bytes are those of the lock. Raise GatheringError.
    """
    with tempfile.TemporaryDirectory(prefix="dios-wheels-") as name:
        place = Path(name)
        (place / own.name).write_bytes(own.data)
        wheels = place / "gathered"
        named = f"{place / own.name}[{extras}]" if extras else str(place / own.name)
        options = ["--dest", str(wheels), "--only-binary=:all:", "--implementation", "cp"]
        options += ["--python-version", platform.python]
        options += [word for tag in platform.tags() for word in ("--platform", tag)]
        options += [] if folder is None else ["--no-index", "--find-links", str(folder)]
        if lock is not None:
            (place / "constraints.txt").write_text(lock.constraints)
            options += ["--constraint", str(place / "constraints.txt")]
        _run_pip(["download", *options, named], place, platform, report, offline=folder is not None)
        uploads = [
            Upload(path.name, path.read_bytes())
            for path in sorted(wheels.glob("*.whl"))
            if path.name != own.name
        ]
        if lock is not None:
            for upload in uploads:
                lock.check(upload)
        return uploads


def _run_pip(
    words: Sequence[str],
    place: Path,
    platform: Platform,
    report: Callable[[str], None],
    *,
    offline: bool,
) -> None:
    python = sys.executable
    if importlib.util.find_spec("pip") is None:
        # Environments that uv makes have no pip.
        report("making an environment with pip")
        venv.create(place / "pip", with_pip=True, symlinks=True)
        python = str(place / "pip" / "bin" / "python")
    command = [python, "-m", "pip", "--disable-pip-version-check", "--no-input", *words, "--progress-bar=off"]
    lines: list[str] = []
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None  # noqa: S101 - for mypy: it is a pipe
        try:
            for line in process.stdout:
                lines.append(line.strip())
                report(f"gathering wheels: {line.strip()}")
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        remedy = (
            "Fill it on a machine with a network, and with the hosts' Python and kind of processor"
            if offline
            else "Check this machine's network and its configuration of pip, give wheels with --wheelhouse, "
            "or other versions with --lock"
        )
        errors = [line for line in lines if line.startswith("ERROR")] or lines
        reason = "; ".join(errors[-_LINES_KEPT:]) or "it printed nothing"
        raise GatheringError(f"cannot gather the wheels for {platform}: {reason}. {remedy}.")


def requirements(own: Wheel, others: Iterable[Upload], *, extras: str) -> str:
    """Return pip's requirements file: the version and the hash of each wheel, this package's first."""
    lines = [_pinned(own.name, own.data, extras), *(_pinned(wheel.name, wheel.data) for wheel in others)]
    return "\n".join(lines) + "\n"


def _pinned(name: str, data: bytes, extras: str = "") -> str:
    distribution, version, *_ = name.split("-")
    marked = f"[{extras}]" if extras else ""
    return f"{distribution}{marked}=={version} --hash=sha256:{hashlib.sha256(data).hexdigest()}"

"""The first process of a new mount namespace: it mounts what a command needs, runs it, and ends what is left.

There is no pid namespace: nodes of one machine tell by their process ids whose control groups are left over.
The kernel removes the mounts with the last process of the namespace.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

_DETACH: Final = 2
_OUTER: Final = ".outer"


@dataclass(frozen=True, slots=True)
class Plan:
    """A command and the view of the machine that it has."""

    command: list[str]
    folder: str
    """The folder in which the command begins."""
    environment: dict[str, str]
    root: str = ""
    """The folder that becomes the root; empty for the machine's own."""
    shared: list[str] = field(default_factory=list)
    """Files and folders of the machine that are there too, by the same paths."""
    closed: list[str] = field(default_factory=list)
    """Folders of the machine that not every user may enter: they have only what is shared, for every user."""


def started(plan: Plan) -> subprocess.Popen[bytes]:
    """Start a command as root in namespaces of its own."""
    repository = Path(__file__).resolve().parents[3]
    words = ["unshare", "--mount", "--propagation", "private"]
    return subprocess.Popen(
        [*words, sys.executable, "-m", "tests.support.lab.private_root", json.dumps(asdict(plan))],
        cwd=repository,
        env={**os.environ, "PYTHONPATH": str(repository)},
        stdin=subprocess.DEVNULL,
    )


def _mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


def _share(path: str, root: str) -> None:
    """Bind a file or folder of the machine to the same path below a root."""
    target = Path(root + path)
    if Path(path).is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    _mount("--bind", path, str(target))


def _enter(plan: Plan) -> None:
    """Make a folder the root of this namespace's processes."""
    root = plan.root
    _mount("--bind", root, root)
    for name in ("dev", "proc", "sys"):
        _mount("--rbind", f"/{name}", f"{root}/{name}")
    _mount("-t", "tmpfs", "-o", "mode=0755", "tmpfs", f"{root}/run")
    for path in plan.shared:
        _share(path, root)
    Path(root, _OUTER).mkdir(exist_ok=True)
    os.chdir(root)
    subprocess.run(["pivot_root", ".", _OUTER], check=True)
    os.chdir("/")
    library = ctypes.CDLL(None, use_errno=True)
    if library.umount2(f"/{_OUTER}".encode(), _DETACH):
        raise OSError(ctypes.get_errno(), "cannot leave the machine's root")


def _open(plan: Plan) -> None:
    """Mount what is shared of closed folders into empty ones that everybody may enter."""
    for number, folder in enumerate(plan.closed):
        kept = [path for path in plan.shared if path.startswith(f"{folder}/")]
        held = [os.open(path, os.O_PATH) for path in kept]
        _mount("-t", "tmpfs", "-o", "mode=0755", f"open{number}", folder)
        for path, descriptor in zip(kept, held, strict=True):
            Path(path).mkdir(parents=True, exist_ok=True)
            _mount("--bind", "--no-canonicalize", f"/proc/{os.getpid()}/fd/{descriptor}", path)
            os.close(descriptor)


def main() -> int:
    """Prepare the namespace, run the command, and end what it leaves behind. Return its exit status."""
    plan = Plan(**json.loads(sys.argv[1]))
    # A terminal's Ctrl-C reaches the command too, which ends in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if plan.root:
        _enter(plan)
    else:
        _open(plan)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(plan.folder)
        os.execvpe(plan.command[0], plan.command, plan.environment)  # noqa: S606 - a program of the plan
    signal.signal(signal.SIGTERM, lambda _number, _frame: os.kill(child, signal.SIGKILL))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    _end_others()
    return code if code >= 0 else 128 - code


def _end_others() -> None:
    """End the other processes of this mount namespace; their own namespaces end with them."""
    own = Path("/proc/self/ns/mnt").readlink()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if (entry / "ns/mnt").readlink() == own:
                    os.kill(int(entry.name), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())

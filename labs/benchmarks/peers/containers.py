"""Starts of an interpreter in other sandboxes: bubblewrap, runc, and gVisor's runsc.

The containers see the system's library and the interpreter's environment, read-only, and have no network.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

BUBBLEWRAP: Final = "bubblewrap"
RUNC: Final = "runc"
GVISOR: Final = "gVisor (runsc)"

_PROTECTED: Final = ("--unshare-all", "--ro-bind", "/", "/", "--die-with-parent")
_TREES: Final = ("/usr", "/lib", "/lib64", "/bin")
_RUNSC: Final = ("--network=none", "--ignore-cgroups")

Command = Callable[[], list[str]]


@contextlib.contextmanager
def commands(program: list[str]) -> Iterator[dict[str, Command]]:
    """Yield, for each sandbox of this machine, a function that returns the command of its next start."""
    numbers = itertools.count(1)
    available: dict[str, Command] = {}
    with tempfile.TemporaryDirectory(prefix="dios-bench-bundle-") as folder:
        bubblewrap, runc, runsc = (shutil.which(name) for name in ("bwrap", "runc", "runsc"))
        if bubblewrap is not None:
            available[BUBBLEWRAP] = lambda: [bubblewrap, *_PROTECTED, *program]
        if runc is not None:
            _make_bundle(runc, Path(folder), program)
            available[RUNC] = lambda: [runc, "run", "--bundle", folder, f"dios-bench-{next(numbers)}"]
            if runsc is not None:
                name = "dios-bench-gvisor"
                available[GVISOR] = lambda: [
                    *(runsc, *_RUNSC, "run", "--bundle", folder),
                    f"{name}-{next(numbers)}",
                ]
        yield available


def _make_bundle(runc: str, folder: Path, program: list[str]) -> None:
    """Write the configuration of a container, from the defaults of runc."""
    subprocess.run([runc, "spec", "--bundle", str(folder)], check=True, capture_output=True)
    file = folder / "config.json"
    config = json.loads(file.read_text())
    config["process"].update(terminal=False, args=program, cwd="/")
    config["root"] = {"path": "rootfs", "readonly": True}
    for tree in dict.fromkeys((*_TREES, sys.base_prefix, sys.prefix)):
        if tree != "/usr" and tree.startswith("/usr/"):
            continue
        (folder / f"rootfs{tree}").mkdir(parents=True, exist_ok=True)
        mount = {"destination": tree, "type": "bind", "source": tree, "options": ["rbind", "ro"]}
        config["mounts"].append(mount)
    file.write_text(json.dumps(config))

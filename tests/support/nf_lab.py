"""Two machines and a network function between them, each in namespaces of its own, on virtual cables.

Not for: nodes (``lab_rig``). Nothing of the machine that runs it is touched; offloads are off at both ends,
since a virtual cable carries what no real one does: frames without checksums, and longer than its MTU.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from lab_spaces import NotHereError, Space, mortal, run

LEFT: Final = "10.214.0.1"
RIGHT: Final = "10.214.0.2"
END_SECONDS: Final = 30.0
_PLAY: Final = Path(__file__).with_name("nf_play.py")
_OFF: Final = (
    "from dios.sprayer.linux.offloads import change, wanted\n"
    "change('e0', {name: False for name in wanted('e0') if name.startswith('tx-')"
    " and ('segmentation' in name or 'checksum' in name)})\n"
)
Told = list[dict[str, dict[str, int]]]


class FunctionLab:
    """Left and right with addresses, and the function's interfaces ``in0`` and ``out0`` between them."""

    def __init__(self, folder: Path) -> None:
        self.folder: Final = folder
        self.records: Final = folder / "offloads"
        self.said = ""
        self._stack: Final = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            self.left, self.right, self.middle = (
                stack.enter_context(contextlib.closing(Space(name))) for name in ("left", "right", "middle")
            )
            for space, ours, number in ((self.left, "in0", 1), (self.right, "out0", 2)):
                self._lay(space, ours, number)
            self._stack.push(stack.pop_all())

    def _lay(self, space: Space, ours: str, number: int) -> None:
        self.middle.batch(
            [
                " ".join(
                    [
                        *("link", "add", ours, "address", f"02:d1:05:01:00:{number:02x}", "type", "veth"),
                        *("peer", "name", "e0", "address", f"02:d1:05:02:00:{number:02x}"),
                        *("netns", str(space.pid)),
                    ]
                ),
                f"link set {ours} up",
            ]
        )
        space.batch([f"address add 10.214.0.{number}/24 dev e0", "link set e0 up"])
        space.batch([f"address add fd00:214::{number}/64 dev e0 nodad"])
        run(space.inside(sys.executable, "-c", _OFF))

    def close(self) -> None:
        """Let the namespaces go."""
        self._stack.close()

    def command(self, *, steer: str = "spray", cores: int = 2, function: str = "") -> list[str]:
        """What runs the function."""
        words = ["--pair", "in0", "out0", "--steer", steer, "--cores", str(cores), "--function", function]
        return mortal(self.middle.inside(sys.executable, str(_PLAY), *words, "--records", str(self.records)))

    @contextlib.contextmanager
    def running(self, *, steer: str = "spray", cores: int = 2, function: str = "") -> Iterator[Told]:
        """The function at work; the list has what each core did when it ended."""
        told: Told = []
        log = self.folder / "function.log"
        with (
            log.open("w") as errors,
            subprocess.Popen(
                self.command(steer=steer, cores=cores, function=function),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            ) as process,
        ):
            assert process.stdout is not None
            try:
                assert process.stdout.readline() == "ready\n", log.read_text()[-2000:]
                yield told
                output, _ = process.communicate("", timeout=END_SECONDS)
                assert process.returncode == 0, log.read_text()[-2000:]
                told.extend(json.loads(output))
            finally:
                process.kill()

    @contextlib.contextmanager
    def serving(self, space: Space, command: Sequence[str], ready: str) -> Iterator[None]:
        """A program that serves on a machine, once it printed a line with ``ready``."""
        with subprocess.Popen(
            mortal(space.inside(*command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    if ready in line:
                        break
                else:
                    raise NotHereError(f"{command[0]} ended")
                yield
            finally:
                process.kill()


def features(space: Space, name: str) -> dict[str, bool]:
    """The features of an interface, as the kernel has them."""
    text = f"import json; from dios.sprayer.linux.offloads import active; print(json.dumps(active({name!r})))"
    found: dict[str, bool] = json.loads(run(space.inside(sys.executable, "-c", text)))
    return found

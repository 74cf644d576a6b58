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

from tests.support.lab.namespaces import MachineNamespaces, NotHereError, killed_with_parent, run

LEFT: Final = "10.214.0.1"
RIGHT: Final = "10.214.0.2"
END_SECONDS: Final = 30.0
ROOT: Final = Path(__file__).parents[3]
PYTHON: Final = ("env", f"PYTHONPATH={ROOT}", sys.executable)
"""Programs in namespaces load the library that is tested."""
_RAW: Final = Path(__file__).parents[1] / "programs" / "raw_frames.py"
_PLAY: Final = Path(__file__).parents[1] / "programs" / "nf_play.py"
# The file alone: all of the library would take a second to load.
_OFFLOADS: Final = ROOT / "dios" / "sprayer" / "linux" / "offloads.py"
_CHANGE: Final = """
import json, runpy, sys
offloads = runpy.run_path(sys.argv[1])
name, kinds, on = sys.argv[2], sys.argv[3].split(), sys.argv[4] == "on"
chosen = [each for each in offloads["requested_features"](name) if any(kind in each for kind in kinds)]
offloads["change_features"](name, dict.fromkeys(chosen, on))
print(json.dumps(offloads["active_features"](name)))
"""
SEGMENTS: Final = "tx-tcp tx-udp tx-generic-segmentation tx-sctp-segmentation"
CHECKSUMS: Final = "tx-checksum"
Told = list[dict[str, dict[str, int]]]


class FunctionLab:
    """Left and right with addresses, and the function's interfaces ``in0`` and ``out0`` between them."""

    def __init__(self, folder: Path, how: str = "af_packet") -> None:
        self.folder: Final = folder
        self.how: Final = how
        self.records: Final = folder / "offloads"
        self.said = ""
        self._stack: Final = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            self.left, self.right, self.middle = (
                stack.enter_context(contextlib.closing(MachineNamespaces(name)))
                for name in ("left", "right", "middle")
            )
            for space, ours, number in ((self.left, "in0", 1), (self.right, "out0", 2)):
                self._lay(space, ours, number)
            self._stack.push(stack.pop_all())

    def _lay(self, space: MachineNamespaces, ours: str, number: int) -> None:
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
        offloads(space, "e0", f"{SEGMENTS} {CHECKSUMS}", on=False)

    def close(self) -> None:
        """Let the namespaces go."""
        self._stack.close()

    def command(
        self,
        *,
        steer: str = "spray",
        cores: int = 2,
        function: str = "",
        places: int = 1024,
        secret: int = 1,
        more: Sequence[str] = (),
    ) -> list[str]:
        """What runs the function."""
        words = ["--pair", "in0", "out0", "--steer", steer, "--cores", str(cores), "--function", function]
        words += ["--places", str(places), "--secret", str(secret), "--how", self.how, *more]
        return killed_with_parent(
            self.middle.inside(*PYTHON, str(_PLAY), *words, "--records", str(self.records))
        )

    @contextlib.contextmanager
    def running(
        self,
        *,
        steer: str = "spray",
        cores: int = 2,
        function: str = "",
        places: int = 1024,
        secret: int = 1,
        more: Sequence[str] = (),
    ) -> Iterator[Told]:
        """The function at work; the list has what each core did when it ended."""
        told: Told = []
        log = self.folder / "function.log"
        with (
            log.open("w") as errors,
            subprocess.Popen(
                self.command(
                    steer=steer, cores=cores, function=function, places=places, secret=secret, more=more
                ),
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

    def send(self, frames: Sequence[bytes], space: MachineNamespaces | None = None, name: str = "e0") -> None:
        """Frames as they are, from the left or another place."""
        text = "".join(frame.hex() + "\n" for frame in frames)
        run((space or self.left).inside(sys.executable, str(_RAW), "send", name), typed=text)

    def carried(
        self,
        frames: Sequence[bytes],
        space: MachineNamespaces | None = None,
        names: tuple[str, str] = ("e0", "e0"),
    ) -> list[bytes]:
        """What arrives on the right of frames that the left sends, all to 02:00:00:00:00:02.

        With a ``space``, it is sent and taken there, by two interfaces.
        """
        taker = [sys.executable, str(_RAW), "take", names[1], str(len(frames))]
        command = killed_with_parent((space or self.right).inside(*taker))
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            self.send(frames, space, names[0])
            output, _ = process.communicate(timeout=END_SECONDS)
        return [bytes.fromhex(line) for line in output.split()]

    @contextlib.contextmanager
    def serving(self, space: MachineNamespaces, command: Sequence[str], ready: str) -> Iterator[list[str]]:
        """A program that serves on a machine, after a line with ``ready``, and what it says then."""
        said: list[str] = []
        with subprocess.Popen(
            killed_with_parent(space.inside(*command)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    if ready in line:
                        break
                else:
                    raise NotHereError(f"{command[0]} ended")
                yield said
            finally:
                process.kill()
                said.extend(process.stdout)


def offloads(space: MachineNamespaces, name: str, kinds: str, *, on: bool) -> dict[str, bool]:
    """Switch an interface's features whose names have one of some parts in them; all its features then."""
    words = [str(_OFFLOADS), name, kinds, "on" if on else "off"]
    states: dict[str, bool] = json.loads(run(space.inside(sys.executable, "-c", _CHANGE, *words)))
    return states


def features(space: MachineNamespaces, name: str) -> dict[str, bool]:
    """The features of an interface, as the kernel has them."""
    return offloads(space, name, "none of these", on=False)

"""Sandboxes with each kernel below them: their start, a run in them, and their memory, measured in turns.

The image of the one under an OCI runtime is empty, so that only the runtime differs.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import dios
from dios.limits import KIB
from labs.benchmarks.measure import clock, median
from labs.benchmarks.nodes import running_node
from labs.benchmarks.report import Row, Section, number

KERNEL: Final = "the kernel of the machine"
IMAGE: Final = "an image under an OCI runtime"
GVISOR: Final = "gVisor"
ROUNDS: Final = 9
RUNS: Final = 100
_MB: Final = 1e6
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


class _Kind(NamedTuple):
    """The arguments of a sandbox."""

    image: str = ""
    isolation: str = "kernel"


def measured(section: Section) -> Row:
    """Measure all that this machine starts, and return their row."""
    starts: dict[str, list[float]] = {}
    runs: dict[str, list[float]] = {}
    sizes: dict[str, list[float]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="dios-bench-image-") as folder,
        running_node(container_runtime="any") as node,
        dios.connect(str(node.data)) as client,
    ):
        kinds = _available(section, client, _empty_image(Path(folder)))
        for _ in range(ROUNDS):
            for name, given in kinds.items():
                began = clock()
                with dios.Sandbox(node=client, image=given.image, isolation=given.isolation) as box:
                    box.run("1+1")
                    starts.setdefault(name, []).append((clock() - began) / 1e6)
                    runs.setdefault(name, []).append(_run_us(box))
                    (session,) = (
                        task for task in client.tasks() if task.label == "sandbox" and not task.ended
                    )
                    sizes.setdefault(name, []).append(_memory(session.pid) / _MB)
    words = []
    for name in kinds:
        start = section.figure(f"session on {name}: open to first result", median(starts[name]), "ms")
        run_us = section.figure(f"session on {name}: one run", median(runs[name]), "µs")
        size = section.figure(f"session on {name}: memory of its processes", median(sizes[name]), "MB")
        words.append(f"{name}: {number(start)} ms, {number(run_us)} µs, {number(size)} MB")
    return Row(
        'a session on each kernel: open to first result, one run("1+1"), memory of its processes',
        words[0],
        "; ".join(words[1:]),
    )


def _available(section: Section, client: dios.Node, image: str) -> dict[str, _Kind]:
    """Return the arguments of the kinds of sandboxes that start here, after one start of each."""
    kinds: Mapping[str, _Kind] = {
        KERNEL: _Kind(),
        IMAGE: _Kind(image=image),
        GVISOR: _Kind(isolation="gvisor"),
    }
    available: dict[str, _Kind] = {}
    for name, given in kinds.items():
        try:
            dios.Sandbox(node=client, image=given.image, isolation=given.isolation).close()
        except dios.DiosError as error:
            section.trouble.append(f"no session on {name}: {error}")
        else:
            available[name] = given
    return available


def _run_us(box: dios.Sandbox) -> float:
    taken = []
    for _ in range(RUNS):
        began = clock()
        box.run("1+1")
        taken.append((clock() - began) / 1e3)
    return median(taken)


def _memory(pid: int) -> float:
    """Return the bytes of a process and of all below it; of shared pages each has its part."""
    rows = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines())
    own = next(int(row[1]) * KIB for row in rows if row[0] == "Pss:")
    children = (path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children"))
    return own + sum(_memory(int(child)) for text in children for child in text.split())


def _empty_image(folder: Path) -> str:
    """Write an OCI layout of an image without layers, and return its place."""

    def stored(kind: str, content: Mapping[str, object]) -> dict[str, object]:
        data = json.dumps(content).encode()
        digest = hashlib.sha256(data).hexdigest()
        (folder / "blobs/sha256" / digest).write_bytes(data)
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}

    (folder / "blobs/sha256").mkdir(parents=True)
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    architecture = _ARCHITECTURES[os.uname().machine]
    rootfs = {"type": "layers", "diff_ids": []}
    config = {"architecture": architecture, "os": "linux", "config": {}, "rootfs": rootfs}
    kind = "application/vnd.oci.image"
    described = stored(f"{kind}.config.v1+json", config)
    manifest = stored(
        f"{kind}.manifest.v1+json",
        {
            "schemaVersion": 2,
            "mediaType": f"{kind}.manifest.v1+json",
            "config": described,
            "layers": [],
        },
    )
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [manifest]}))
    return f"oci-layout:{folder}"

"""The end of the month: every acknowledged file has its bytes and its number of replicas."""

from __future__ import annotations

import json
import shutil
from typing import Final

from labs.benchmarks.month.plan import Month
from labs.benchmarks.month.site import SMALL_DISK
from labs.benchmarks.month.work import REPLICAS, digest_of

_SETTLED_S: Final = 300.0


def judge(month: Month) -> list[tuple[str, str]]:
    """Check everything, and return the figures. Raise AssertionError with the first broken promise."""
    site, users = month.site, month.users
    site.wait(lambda: set(site.statuses().values()) == {"alive"}, "all nodes live", _SETTLED_S)
    site.wait(lambda: _is_kept(month), "no file is short of its replicas", _SETTLED_S)
    files = users.files
    got = site.folder / "all"
    site.must(f"dios get papers/ --recursive --output {got}")
    wrong = [
        path
        for path, marks in files.items()
        if not (got / path).is_file() or digest_of(got / path) not in marks
    ]
    assert not wrong, f"{len(wrong)} of {len(files)} acknowledged files are lost or wrong: {wrong[:5]}"
    size = sum((got / path).stat().st_size for path in files)
    shutil.rmtree(got)
    replicas: dict[str, int] = {}
    exact = 0
    for path in files:
        rows = json.loads(site.must(f"dios stat papers/{path} --json"))["replicas"]
        nodes = {row["node"] for row in rows}
        assert len(nodes) >= REPLICAS, f"{path} has replicas on {sorted(nodes)} only"
        exact += len(rows) == REPLICAS
        for node in nodes:
            replicas[node] = replicas.get(node, 0) + 1
    service = json.loads(site.must("dios service ls --json"))
    running = {row["service"]: row["running"] for row in service}
    assert running == {"web": 2}, f"the service does not run as promised: {running}"
    assert not users.troubles, f"{len(users.troubles)} troubles: {users.troubles[0]}"
    return [
        ("acknowledged files", f"{len(files)}, {size / 1e6:.1f} MB, all with their bytes"),
        ("replicas", ", ".join(f"{name} {count}" for name, count in sorted(replicas.items()))),
        ("replicas of a file", f"{REPLICAS} of {exact} files, more of {len(files) - exact}"),
        ("replicas of the service", "2 of 2"),
        *((kind, f"{count:,}") for kind, count in sorted(users.counts.items())),
        ("the node with a full disk", SMALL_DISK if month.filler else "left out"),
    ]


def _is_kept(month: Month) -> bool:
    done = month.site.type("dios group describe papers --json")
    if done.status:
        return False
    promise = json.loads(done.output)["promise"]
    return bool(promise["checked"]) and promise["short"] == 0 and promise["conflicts"] == 0

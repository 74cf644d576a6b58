"""The system calls that applications make, counted by strace (Figure 2.8)."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from dios.errors import DiosError
from labs.papers.figures import Cell, Figure, FigureTable, PublishedClaim
from labs.papers.interference.runs import InterferenceRuns
from labs.papers.judgements import judged

COMMON: Final = 0.01
"""A call is common if it is at least this share of all calls of an application."""
LINUX_CALLS: Final = 326
"""The number of system calls of Linux 3.14 on x86-64 (thesis section 2.2.4)."""
_COUNT: Final = """
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
def count(text):
    return Counter(text.split())
if __name__ == "__main__":
    parts = ["one two three four five " * int(sys.argv[1])] * 8
    with ProcessPoolExecutor(2) as pool:
        print(sum(map(len, pool.map(count, parts))))
"""
_STORE: Final = """
import sqlite3, sys
base = sqlite3.connect(sys.argv[2])
base.execute("create table pairs (key text primary key, value text)")
for number in range(int(sys.argv[1])):
    with base:
        base.execute("insert into pairs values (?, ?)", (str(number), "value"))
    base.execute("select value from pairs where key = ?", (str(number),)).fetchone()
"""
_SERVER: Final = """
import http.server, sys, threading, urllib.request
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
server.RequestHandlerClass.log_message = lambda *_: None
threading.Thread(target=server.serve_forever, daemon=True).start()
for _ in range(int(sys.argv[1])):
    urllib.request.urlopen("http://127.0.0.1:%d/" % server.server_address[1]).read()
"""
_RANKS: Final = """
import sys
import numpy as np
edges = np.memmap(sys.argv[2], np.int32, "w+", shape=(2, int(sys.argv[1]) * 1000))
edges[:] = np.random.default_rng(1).integers(0, 1000, edges.shape)
edges.flush()
ranks = np.full(1000, 0.001)
for _ in range(10):
    ranks = 0.15 / 1000 + 0.85 * np.bincount(edges[1], ranks[edges[0]], 1000)
"""
APPLICATIONS: Final = {
    "word count by a pool of processes (in Hadoop's place)": _COUNT,
    "key-value store in SQLite (in Redis' place)": _STORE,
    "HTTP server and client (in ZooKeeper's place)": _SERVER,
    "PageRank on a mapped file (in GraphChi's place)": _RANKS,
}


class CallCounts(NamedTuple):
    """The number of calls by name, of one application."""

    name: str
    counts: dict[str, int]

    @property
    def common(self) -> list[str]:
        """The calls that are at least ``COMMON`` of all, most frequent first."""
        total = sum(self.counts.values())
        return [name for name, count in self.counts.items() if count >= COMMON * total]


def missing() -> str:
    """Return why this machine cannot count system calls, or nothing."""
    if shutil.which("strace") is None:
        return "strace is not installed (apt install strace)"
    try:
        _traced([sys.executable, "-I", "-S", "-c", ""])
    except DiosError as error:
        return error.message
    return ""


def parse_counts(text: str) -> dict[str, int]:
    """Return the calls of a summary of ``strace -c``, most frequent first."""
    counts: dict[str, int] = {}
    for line in text.splitlines():
        words = line.split()
        # share, seconds, microseconds per call, calls, errors (often empty), name
        if len(words) >= 5 and words[3].isdigit() and words[-1] != "total" and words[-1].isidentifier():
            counts[words[-1]] = int(words[3])
    return dict(sorted(counts.items(), key=lambda pair: -pair[1]))


def _traced(command: Sequence[str]) -> dict[str, int]:
    with tempfile.NamedTemporaryFile(prefix="dios-repro-") as summary:
        line = ["strace", "-f", "-c", "-o", summary.name, *command]
        done = subprocess.run(line, capture_output=True, check=False, text=True)
        if done.returncode:
            raise DiosError(f"strace does not work here: {done.stderr.strip().splitlines()[-1:]}")
        return parse_counts(Path(summary.name).read_text(encoding="utf-8"))


def figure_8(runs: InterferenceRuns) -> Figure:
    """Return Figure 2.8: distinct and common calls of applications."""
    work = "20" if runs.scope.quick else "2000"
    call_counts = []
    # The interpreter's own calls are not the application's.
    runs.progress("2.8: the interpreter")
    own = _traced([sys.executable, "-I", "-c", ""])
    for name, program in APPLICATIONS.items():
        runs.progress(f"2.8: {name}")
        with tempfile.TemporaryDirectory(prefix="dios-repro-") as folder:
            path = Path(folder) / "program.py"
            path.write_text(program, encoding="utf-8")
            counts = _traced([sys.executable, "-I", str(path), work, str(Path(folder) / "data")])
        counts = {call: count - own.get(call, 0) for call, count in counts.items()}
        positive = {call: count for call, count in counts.items() if count > 0}
        call_counts.append(CallCounts(name, dict(sorted(positive.items(), key=lambda pair: -pair[1]))))
    rows: list[tuple[Cell, ...]] = [
        (
            calls.name,
            sum(calls.counts.values()),
            len(calls.counts),
            len(calls.common),
            ", ".join(calls.common[:6]),
        )
        for calls in call_counts
    ]
    return runs.figure(
        "2.8",
        "Figure 2.8: system calls of applications",
        (
            FigureTable(
                "Calls, without those of the interpreter itself",
                ("application", "calls", "distinct", "common", "most frequent"),
                rows,
            ),
        ),
        _claims(call_counts),
        (),
        (
            (
                "Hadoop, Redis, ZooKeeper and GraphChi are replaced by small programs of the same kinds in "
                "Python. The calls of the interpreter's start are subtracted."
            ),
            f"A call is common if it is at least {COMMON:.0%} of an application's calls.",
        ),
    )


def _claims(call_counts: Sequence[CallCounts]) -> list[PublishedClaim]:
    distinct = [float(len(calls.counts)) for calls in call_counts]
    every: dict[str, int] = {}
    for program in call_counts:
        for name, count in program.counts.items():
            every[name] = every.get(name, 0) + count
    total, covered, needed = sum(every.values()), 0, 0
    for count in sorted(every.values(), reverse=True):
        covered, needed = covered + count, needed + 1
        if covered >= 0.99 * total:
            break
    share = sum(every.get(name, 0) for name in ("read", "write", "pread64", "pwrite64", "recvfrom", "sendto"))
    return [
        PublishedClaim(
            "section 2.2.4, Figure 2.8a",
            "distinct calls of each application",
            f"19 to 85, of {LINUX_CALLS}",
            f"{min(distinct):.0f} to {max(distinct):.0f}",
            judged(distinct, 19, 85, every=True),
        ),
        PublishedClaim(
            "section 2.2.4",
            "common calls of each application",
            "five or fewer but for Hadoop",
            ", ".join(str(len(calls.common)) for calls in call_counts),
            judged(sorted(len(calls.common) for calls in call_counts)[-2], 1, 5, none=float("inf")),
        ),
        PublishedClaim(
            "section 2.2.4, Figure 2.8c",
            "calls that together are 99 % of all",
            "11",
            str(needed),
            judged(needed, 9, 13, none=float("inf")),
        ),
        PublishedClaim(
            "section 2.2.4",
            "share of calls that read and write",
            "35 to 50 %",
            f"{share / max(total, 1):.0%}",
            judged(share / max(total, 1), 0.35, 0.5),
        ),
    ]

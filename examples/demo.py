"""``make demo``: a cluster, a MapReduce job of sandboxed tasks on real files, a killed node, a check.

All files are in a temporary directory, which is removed at the end.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

try:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TransferSpeedColumn,
    )
    from rich.table import Table

    import dios
    from dios.host.confinement.mechanisms import obstacle_to_pure, probe
    from dios.lib import mapreduce
    from dios.node import daemon, local_cluster
except KeyboardInterrupt:
    sys.exit(130)  # loading takes a part of a second

JOB: Final = Path(__file__).with_name("demo_words.py")
WORD: Final = re.compile(rb"[a-z]+(?:'[a-z]+)?")
SUFFIXES: Final = {".py", ".txt", ".rst", ".md", ".cfg", ".toml"}
LOOKED_AT: Final = 4096
GONE_SECONDS: Final = 10.0
_TASKS_MAX: Final = 5
_TURNS: Final = 5


def main() -> int:
    """Run the demo; return 0 if the job's counts equal those of a plain count and no process is left."""
    parser = argparse.ArgumentParser(description="Count the words of real files with sandboxed tasks.")
    parser.add_argument("--input", type=Path, help="a file or directory (default: Python's own library)")
    parser.add_argument(
        "--workers",
        type=int,
        help="number of concurrent mappers (default: as many as processors; with --ui two for each node)",
    )
    parser.add_argument("--reducers", type=int, default=2, help="number of parts of the result")
    parser.add_argument("--nodes", type=int, default=3, help="number of nodes of the cluster")
    parser.add_argument("--spare", action="store_true", help="do not kill a node during the job")
    parser.add_argument("--ui", action="store_true", help="show the dashboard, and wait for you")
    parser.add_argument("--top", type=int, default=15, help="number of words to print")
    options = parser.parse_args()
    console = Console()
    place: Path = options.input or Path(sysconfig.get_path("stdlib"))
    files = files_of(place, all_kinds=options.input is not None)
    if not files:
        console.print(f"[red]{place} has no text files; choose another with --input (make demo INPUT=path)")
        return 2
    total = sum(path.stat().st_size for path in files.values())
    times = f", {_TURNS} times over" if options.ui else ""
    console.print(
        f"[bold]Counting the words of {len(files):,} files[/] in {place} ({total / 1e6:.1f} MB){times}"
    )
    if options.ui:
        files = {f"{turn}/{label}": path for turn in range(_TURNS) for label, path in files.items()}
    with (
        running_cluster(console, options.nodes, schedules=options.ui) as (cluster, node),
        ExitStack() as shown,
    ):
        if options.ui:
            shown.enter_context(dashboard(console, cluster))
        victim = None if options.spare or options.nodes < 2 else Victim(cluster.nodes[-1])
        workers = options.workers or max(os.cpu_count() or 2, 2 * options.nodes if options.ui else 0)
        result = count(console, node, files, workers, options.reducers, victim)
        with result:
            counts: Counter[bytes] = Counter()
            for word, number in result:
                if isinstance(word, bytes) and isinstance(number, int):
                    counts[word] = number
            show(console, result, counts, options.top)
            tell_of(console, victim, node, result)
            status = check(console, result, counts, files)
            if options.ui:
                console.input("The dashboard goes on until you press Enter. ")
            return status


def files_of(place: Path, *, all_kinds: bool) -> dict[str, Path]:
    """Return the text files at a place, by their labels in the job."""
    if place.is_file():
        return {place.name: place}
    paths: dict[str, Path] = {}
    for path in sorted(place.rglob("*")):
        skipped = "site-packages" in path.parts or "dist-packages" in path.parts
        if path.is_symlink() or not path.is_file() or (skipped and not all_kinds):
            continue
        if all_kinds or path.suffix in SUFFIXES:
            try:
                with path.open("rb") as file:
                    is_text = b"\0" not in file.read(LOOKED_AT)
            except OSError:
                continue
            if is_text:
                paths[str(path.relative_to(place))] = path
    return paths


# -- the cluster --------------------------------------------------------------------------------------
class Victim:
    """A node that is killed during the job, as if its machine lost power."""

    def __init__(self, node: local_cluster.LocalNode) -> None:
        self.name: Final = node.name
        self.pid = 0
        self._socket: Final = node.socket

    def strike(self, progress: mapreduce.JobProgress) -> None:
        """Kill the node when a third of the input is mapped."""
        if not self.pid and 3 * progress.bytes_done >= progress.bytes_total and progress.running:
            running = daemon.find(self._socket)
            if running is not None:
                self.pid = running.pid
                os.kill(running.pid, signal.SIGKILL)


@contextmanager
def dashboard(console: Console, cluster: local_cluster.LocalCluster) -> Iterator[None]:
    """Show the dashboard until the end of the block, and a run that waits for a device that no node has."""
    first = str(cluster.nodes[0].socket)
    command = [sys.executable, "-P", "-m", "dios.cli.main"]
    shown = subprocess.Popen([*command, "ui", "--node", first])
    waits = subprocess.Popen(
        [*command, "run", JOB, "--node", first, "--title", "waits for a GPU", "--constraint", "gpu=yes"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        console.input("Open the page, then press Enter to count. ")
        yield
    finally:
        for process in (waits, shown):
            process.send_signal(signal.SIGINT)
            process.wait()


@contextmanager
def running_cluster(
    console: Console, nodes: int, *, schedules: bool = False
) -> Iterator[tuple[local_cluster.LocalCluster, dios.Node]]:
    """Start nodes in a temporary directory; stop them at the end, and report processes that are left."""
    missing = obstacle_to_pure(probe())
    # The demo places its tasks itself, and a coordinator would be a task outside the sandbox.
    # Few tasks fit on a node, so that a scheduler that prefers the node with the input uses the others, too.
    settings = {"tasks_max": str(_TASKS_MAX)} if schedules else {"coordinator": "off"}
    if missing:
        console.print(
            f"[yellow]This machine cannot confine pure tasks fully ({missing}).\n"
            "The demo's nodes accept that, as `dios up --accept-weaker-sandbox` would: "
            "their tasks run in the weaker sandbox."
        )
        settings["accept_weaker_sandbox"] = "yes"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dios-demo-")))
        # The default node of this user is not replaced.
        (folder / "run").mkdir(mode=0o700)
        os.environ["XDG_RUNTIME_DIR"] = str(folder / "run")
        began = time.monotonic()
        cluster = local_cluster.make(folder / "cluster", nodes=nodes, settings=settings)
        stack.callback(stop, console, cluster)
        local_cluster.start(cluster)
        pids = ", ".join(f"{name}: {running.pid}" for name, running in cluster.running().items())
        console.print(f"{nodes} nodes are running ({pids}), after {time.monotonic() - began:.2f} s.")
        first = str(cluster.nodes[0].socket)
        yield cluster, stack.enter_context(dios.connect(first, groups=()))


def stop(console: Console, cluster: local_cluster.LocalCluster) -> None:
    """Stop the nodes, and check that all of their processes have ended."""
    roots = [running.pid for running in cluster.running().values()]
    family = {*roots, *(pid for root in roots for pid in descendants(root))}
    stopped = local_cluster.stop(cluster, say=console.print)
    deadline = time.monotonic() + GONE_SECONDS
    left = family
    while left and time.monotonic() < deadline:
        left = {pid for pid in family if alive(pid)}
        time.sleep(0.01)
    if left:
        console.print(f"[red]still running: processes {sorted(left)}")
        raise SystemExit(1)
    if stopped:
        console.print(
            f"{', '.join(stopped)} stopped, and none of the cluster's {len(family)} processes is left."
        )


def alive(pid: int) -> bool:
    """Return True if a process runs and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def descendants(pid: int) -> set[int]:
    """Return all processes below a process."""
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            below.setdefault(parent, []).append(int(entry.name))
    pids: set[int] = set()
    todo = [pid]
    while todo:
        children = below.get(todo.pop(), [])
        pids.update(children)
        todo += children
    return pids


# -- the job ------------------------------------------------------------------------------------------
def count(
    console: Console,
    node: dios.Node,
    files: dict[str, Path],
    workers: int,
    reducers: int,
    victim: Victim | None,
) -> mapreduce.JobResult:
    """Run the job with a progress bar."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as bar:
        shown = bar.add_task("copying files", total=sum(path.stat().st_size for path in files.values()))

        def tell(progress: mapreduce.JobProgress) -> None:
            words = "mapping" if progress.bytes_done < progress.bytes_total else "reducing"
            if progress.outputs_done == progress.outputs_total:
                words = "done"
            text = f"{words}, {progress.running} tasks"
            if victim is not None:
                victim.strike(progress)
            bar.update(shown, completed=progress.bytes_done, total=progress.bytes_total, description=text)

        return mapreduce.run(
            node, JOB, files, workers=workers, splits=2 * workers, reducers=reducers, progress=tell
        )


def show(console: Console, result: mapreduce.JobResult, counts: Counter[bytes], top: int) -> None:
    """Print the most frequent words, and the node of each task."""
    console.print(f"[bold]The {min(top, len(counts))} most frequent of {len(counts):,} words:")
    words = Table(box=SIMPLE)
    words.add_column("word")
    words.add_column("count", justify="right")
    for word, number in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:top]:
        words.add_row(word.decode(), f"{number:,}")
    console.print(words)
    brands = ", ".join(sorted({task.status.brand.name.lower() for task in result.tasks}))
    console.print(f'[bold]Where each task ran[/] (all of them {brands}; "2." is a second attempt):')
    tasks = Table(box=SIMPLE, padding=(0, 1, 0, 0))
    for name in ("task", "node", "process", "read", "pairs", "wall s", "CPU s", "peak", "end"):
        tasks.add_column(name, justify="left" if name in {"task", "node", "end"} else "right", no_wrap=True)
    for task in sorted(result.tasks, key=lambda task: (task.role, task.number, task.attempt)):
        tasks.add_row(
            f"{task.role} {task.number}" + (f", {task.attempt}." if task.attempt > 1 else ""),
            task.status.node or "-",
            str(task.status.pid or "-"),
            f"{task.input_bytes / 1e6:.1f} MB" if task.input_bytes else "",
            f"{task.pairs:,}",
            f"{task.seconds:.2f}",
            f"{task.cpu_seconds:.2f}",
            f"{task.peak_bytes / 1e6:.0f} MB",
            "ok" if task.ok else task.status.cause.name.lower().replace("_", " "),
        )
    console.print(tasks)
    console.print(
        f"[bold]{sum(counts.values()):,} words in {result.seconds:.2f} s: "
        f"{result.input_bytes / 1e6 / result.seconds:.1f} MB/s[/], {result.cpu_seconds:.2f} s of CPU time"
    )


def tell_of(console: Console, victim: Victim | None, node: dios.Node, result: mapreduce.JobResult) -> None:
    """Report the killed node, the tasks that were lost, and the work that was repeated."""
    if victim is None:
        return
    if not victim.pid:
        console.print("[yellow]The job ended before a node could be killed; give it more input.")
        return
    lost = [task for task in result.tasks if not task.ok]
    again = sum(task.input_bytes for task in result.tasks) - result.input_bytes
    states = ", ".join(f"{member.name} {member.status.name.lower()}" for member in node.nodes())
    console.print(
        f"[bold]{victim.name} (process {victim.pid}) was killed during the job[/]. Tasks lost with it: "
        f"{len(lost)}; mapped a second time: {max(again, 0) / 1e6:.1f} MB. Now: {states}."
    )


def check(
    console: Console, result: mapreduce.JobResult, counts: Counter[bytes], files: dict[str, Path]
) -> int:
    """Compare the result with a plain count in this process."""
    began = time.monotonic()
    plain: Counter[bytes] = Counter()
    for path in files.values():
        plain.update(WORD.findall(path.read_bytes().lower()))
    seconds = time.monotonic() - began
    if plain != counts:
        wrong = sorted(word.decode() for word in plain | counts if plain[word] != counts[word])
        console.print(f"[red]The counts differ from a plain count for {len(wrong):,} words: {wrong[:10]}")
        return 1
    console.print(
        f"[green]A plain count in one process, without a sandbox, gives the same result[/] in"
        f" {seconds:.2f} s "
        f"({seconds / result.seconds:.2f} x the job's time)."
    )
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except dios.DiosError as error:
        sys.exit(f"demo: {error}")
    except KeyboardInterrupt:
        sys.exit(130)

"""Make the pictures of the dashboard for the documents: ``make screenshots``.

They show the demo with its dashboard, as ``make demo UI=1`` runs it: three nodes count words, and one dies.
"""

from __future__ import annotations

import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from tests.support.web.dashboard import WAIT_S, Pages, browser, environment_in

ROOT = Path(__file__).parents[3]
PICTURES = ROOT / "docs" / "pictures"
_ADDRESS = re.compile(r"http\S+/enter#token=\S+")
_SETTLED_S = 6.0
_PICTURES = (
    ("tasks", "/tasks", ("waits for a GPU", "running")),
    ("cluster", "/", ("n3",)),
    ("jobs", "/jobs", ("mapper",)),
)


def main() -> int:
    """Run the demo, and photograph its pages after the node was killed, and the scheduler's at the end."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        demo = subprocess.Popen(
            [sys.executable, "-u", str(ROOT / "examples" / "demo.py"), "--ui"],
            env=environment_in(folder) | {"COLUMNS": "200"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert demo.stdin is not None
        lines = _lines_of(demo)
        address = _wait_for(lines, _ADDRESS)
        with browser(folder / "browser") as driver:
            driver.set_window_size(1280, 1000)
            pages = Pages(driver, address)
            pages.open("/tasks", "waits for a GPU")
            demo.stdin.write("\n")
            demo.stdin.flush()
            pages.wait_for("mapper 1")
            pages.open("/", "dead")
            for picture, path, words in _PICTURES:
                pages.open(path, *words)
                time.sleep(_SETTLED_S)
                _save(pages, picture)
            pages.open("/scheduling", "waits for a GPU")
            while "are being compiled" in pages.text() or "No data available" in pages.text():
                time.sleep(_SETTLED_S)
            _save(pages, "scheduling")
        _wait_for(lines, re.compile("A plain count in one process"))
        demo.stdin.write("\n")
        demo.stdin.close()
        return demo.wait(WAIT_S)


def _save(pages: Pages, picture: str) -> None:
    pages.driver.save_screenshot(str(PICTURES / f"dashboard-{picture}.png"))


def _lines_of(process: subprocess.Popen[str]) -> queue.Queue[str]:
    """Return the lines that a process prints, read in a thread."""
    lines: queue.Queue[str] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)

    threading.Thread(target=read, daemon=True).start()
    return lines


def _wait_for(lines: queue.Queue[str], pattern: re.Pattern[str]) -> str:
    """Return the first match in the following lines; raise queue.Empty if none comes for a long time."""
    while True:
        match = pattern.search(lines.get(timeout=10 * WAIT_S))
        if match is not None:
            return match[0]


if __name__ == "__main__":
    sys.exit(main())

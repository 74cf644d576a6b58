"""Make the pictures of the dashboard for the documents: ``make screenshots``."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from tests.support.web.dashboard import cluster_in, dashboard_of

PICTURES = Path(__file__).parents[3] / "docs" / "pictures"
_PROGRAM = "import sys, time\ntime.sleep(float(sys.argv[1]))\n"
_RUNS = 12
_SETTLED_S = 6.0


def main() -> int:
    """Run a cluster with some tasks, and photograph its pages."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "job.py").write_text(_PROGRAM)
        with cluster_in(folder, {}) as cluster:
            for number in range(_RUNS):
                cluster.start("run", "job.py", "--label", f"words {number}", "--cpus", "0.4", "--", "600")
            cluster.start("run", "job.py", "--label", "waits for a GPU", "--constraint", "gpu=yes", "--", "1")
            with dashboard_of(cluster, folder / "browser") as pages:
                for page, word in (
                    ("tasks", "words 11"),
                    ("scheduling", "waits for a GPU"),
                    ("cluster", "n3"),
                ):
                    pages.open("/" if page == "cluster" else f"/{page}", word)
                    time.sleep(_SETTLED_S)
                    pages.driver.save_screenshot(str(PICTURES / f"dashboard-{page}.png"))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The users of a month: a writer, a reader and jobs, with what was acknowledged to them."""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Final

from labs.benchmarks.month.site import Site

REPLICAS: Final = 3
ACKNOWLEDGED: Final = 2
BYTES_MAX: Final = 200_000
PUT_PAUSE_S: Final = 2.0
GET_PAUSE_S: Final = 2.0
JOB_PAUSE_S: Final = 20.0
_REPLACED_SHARE: Final = 0.2
_END_S: Final = 300.0

SERVICE: Final = "import time\nprint('up', flush=True)\ntime.sleep(1_000_000)\n"
JOB: Final = """
import hashlib, dios
node = dios.connect()
print(hashlib.sha256(node.inputs[0].read_bytes()).hexdigest())
"""


class Users:
    """The users, each a thread. ``files`` has the digests that a path may have: one that was acknowledged."""

    def __init__(self, site: Site, seed: int) -> None:
        self.site: Final = site
        self.counts: Final[Counter[str]] = Counter()
        self.troubles: Final[list[str]] = []
        self.refusals: Final[Counter[str]] = Counter()
        self._files: Final[dict[str, frozenset[str]]] = {}
        self._lock: Final = threading.Lock()
        self._random: Final = random.Random(seed)  # noqa: S311 - it guards nothing
        self._stop: Final = threading.Event()
        self._threads: Final = [
            threading.Thread(target=self._repeat, args=(work, pause), name=work.__name__, daemon=True)
            for work, pause in (
                (self._put, PUT_PAUSE_S),
                (self._get, GET_PAUSE_S),
                (self._run, JOB_PAUSE_S),
            )
        ]

    @property
    def files(self) -> dict[str, frozenset[str]]:
        """A copy of the digests that each acknowledged path may have."""
        with self._lock:
            return dict(self._files)

    def prepare(self) -> None:
        """Make the group with its promise, and the service."""
        (self.site.home / "web.py").write_text(SERVICE)
        (self.site.home / "job.py").write_text(JOB)
        self.site.must("dios group create papers")
        self.site.must(f"dios group set papers --replicas {REPLICAS} --apart rack")
        self.site.must("dios service create web.py --replicas 2")

    def begin(self) -> None:
        """Start to work."""
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Stop, and wait until the last commands have ended."""
        self._stop.set()
        for thread in self._threads:
            thread.join(_END_S)

    def _repeat(self, work: object, pause: float) -> None:
        assert callable(work)
        while not self._stop.is_set():
            try:
                work()
            except Exception as error:  # noqa: BLE001 - a finding, which the report shows
                self.troubles.append(f"{type(error).__name__}: {error}")
            self._stop.wait(pause)

    def _put(self) -> None:
        known = list(self.files)
        if known and self._random.random() < _REPLACED_SHARE:
            path = self._random.choice(known)
        else:
            path = f"file-{len(known):05}.bin"
        data = self._random.randbytes(self._random.randrange(1, BYTES_MAX))
        mark = hashlib.sha256(data).hexdigest()
        source = self.site.home / "new.bin"
        source.write_bytes(data)
        with self._lock:
            former = self._files.get(path)
            if former is not None:
                # Until this put is acknowledged, the path may have either content.
                self._files[path] = former | {mark}
        done = self.site.type(
            f"dios put new.bin --group papers --as {path} --replace --acknowledge {ACKNOWLEDGED}"
        )
        if done.status:
            self.counts["puts refused"] += 1
            self.refusals[done.errors.strip()[:160]] += 1
            return
        with self._lock:
            self._files[path] = frozenset({mark})
        self.counts["puts acknowledged"] += 1

    def _get(self) -> None:
        files = self.files
        if not files:
            return
        path = self._random.choice(list(files))
        target = self.site.home / "got.bin"
        target.unlink(missing_ok=True)
        began = time.monotonic()
        done = self.site.type(f"dios get papers/{path} --output got.bin")
        if done.status:
            self.counts["gets failed"] += 1
            self.refusals[done.errors.strip()[:160]] += 1
            return
        self.counts["gets"] += 1
        self.counts["slowest get, ms"] = max(
            self.counts["slowest get, ms"], int(1000 * (time.monotonic() - began))
        )
        allowed = files[path] | self.files[path]
        if digest_of(target) not in allowed:
            self.troubles.append(f"{path} has bytes that nobody put there last")

    def _run(self) -> None:
        files = self.files
        if not files:
            return
        path = self._random.choice(list(files))
        done = self.site.type(f"dios run job.py --group papers --input papers/{path}")
        if done.status:
            self.counts["jobs that failed, to be repeated"] += 1
            self.refusals[done.errors.strip()[-160:]] += 1
        elif done.output.strip() in files[path] | self.files[path]:
            self.counts["jobs done"] += 1
        else:
            self.troubles.append(f"a job read other bytes of {path}: {done.output[:80]}")


def digest_of(path: Path) -> str:
    """Return the digest of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()

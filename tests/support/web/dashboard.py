"""A cluster of three with its dashboard, and a headless Chromium in front of it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

WAIT_S = 60
MISSING = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
_OPTIONS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage"
)
_CLICK = """
const found = [...document.querySelectorAll('button')]
  .find(one => one.innerText.trim().toLowerCase() === arguments[0]);
found?.click();
return Boolean(found);
"""


def environment_in(folder: Path) -> dict[str, str]:
    """Return an environment in which commands keep everything in this folder."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("DIOS_", "XDG_"))}
    for name in ("STATE_HOME", "CONFIG_HOME", "RUNTIME_DIR"):
        place = folder / name.lower()
        place.mkdir(mode=0o700, exist_ok=True)
        kept[f"XDG_{name}"] = str(place)
    return kept | {"HOME": str(folder), "DIOS_ANNOUNCE": "false"}


class Cluster:
    """The commands of a cluster in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = environment_in(folder)
        self._started: list[subprocess.Popen[str]] = []

    def dios(self, *arguments: str) -> str:
        """Run a command, and return its output."""
        command = [sys.executable, "-P", "-m", "dios.cli.main", *arguments]
        done = subprocess.run(
            command, env=self.environment, cwd=self.folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, *arguments: str, stderr: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
        """Start a command."""
        command = [sys.executable, "-P", "-m", "dios.cli.main", *arguments]
        process = subprocess.Popen(
            command,
            env=self.environment,
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            text=True,
        )
        self._started.append(process)
        return process

    def start_as(self, uid: int, socket: Path) -> subprocess.Popen[str]:
        """Start ``dios ui`` at a node as another user, who has nothing but a folder of their own."""
        home = self.folder / f"home-{uid}"
        home.mkdir()
        environment = environment_in(home)
        for place in (home, *home.iterdir()):
            os.chown(place, uid, uid)
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "dios.cli.main", "ui", "--node", str(socket)],
            env=environment,
            cwd=home,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            user=uid,
            group=uid,
            extra_groups=[],
        )
        self._started.append(process)
        return process

    def wait_all(self) -> None:
        """Wait for the started commands."""
        for process in self._started:
            process.wait(WAIT_S)


@contextmanager
def cluster_in(folder: Path, settings: Mapping[str, str]) -> Iterator[Cluster]:
    """Start three nodes in two racks, and stop them at the end."""
    cluster = Cluster(folder)
    cluster.dios(
        "up", "--racks", "2", *(word for key, value in settings.items() for word in (f"--{key}", value))
    )
    try:
        yield cluster
    finally:
        cluster.dios("down")
        cluster.wait_all()


class Pages:
    """A browser at a dashboard."""

    def __init__(self, driver: webdriver.Chrome, address: str) -> None:
        self.driver = driver
        self.root = address.partition("/enter")[0]
        driver.get(address)
        self.wait_for("Cluster")

    def text(self) -> str:
        """Return the visible text of the page."""
        return str(self.driver.execute_script("return document.body ? document.body.innerText : ''"))

    def log(self) -> list[dict[str, str]]:
        """Return the messages of the browser's console."""
        entries: list[dict[str, str]] = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return entries

    def wait_for(self, *words: str) -> str:
        """Wait until the page has all these words, and return its text."""
        end = time.monotonic() + WAIT_S
        while True:
            text = self.text()
            missing = [word for word in words if word.lower() not in text.lower()]
            if not missing:
                return text
            assert time.monotonic() < end, (missing, text)

    def click(self, word: str) -> None:
        """Click the first button with this text as soon as there is one."""
        end = time.monotonic() + WAIT_S
        while not self.driver.execute_script(_CLICK, word.lower()):
            assert time.monotonic() < end, (word, self.text())

    def open(self, path: str, *words: str) -> str:
        """Open a page, and wait for words on it."""
        self.driver.get(self.root + path)
        return self.wait_for(*words)


@contextmanager
def address_of(server: subprocess.Popen[str]) -> Iterator[str]:
    """Yield the address that a server prints, and end the server."""
    assert server.stderr is not None
    try:
        said = server.stderr.readline()
        address = re.search(r"http\S+", said)
        assert address is not None, said + server.stderr.read()
        yield address[0]
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(WAIT_S)
        server.stderr.close()


@contextmanager
def imagined_cluster(folder: Path, tasks: int) -> Iterator[str]:
    """Start the dashboard of an imagined cluster with hostile texts; yield its address."""
    command = [sys.executable, "-m", "tests.support.web.imagined", str(tasks)]
    root = Path(__file__).parents[3]
    server = subprocess.Popen(
        command, cwd=root, env=environment_in(folder), stderr=subprocess.PIPE, text=True
    )
    with address_of(server) as address:
        yield address


@contextmanager
def dashboard_of(cluster: Cluster, folder: Path, *, dark: bool = False) -> Iterator[Pages]:
    """Start ``dios ui`` and a browser that has its token."""
    with (
        address_of(cluster.start("ui", stderr=subprocess.PIPE)) as address,
        browser(folder, dark=dark) as driver,
    ):
        yield Pages(driver, address)


@contextmanager
def browser(folder: Path, *, dark: bool = False) -> Iterator[webdriver.Chrome]:
    """Start a browser without a window, whose profile is in this folder."""
    options = webdriver.ChromeOptions()
    for option in (*_OPTIONS.split(), f"--user-data-dir={folder}", "--window-size=1280,860"):
        options.add_argument(option)
    if dark:
        options.add_argument("--force-dark-mode")
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()

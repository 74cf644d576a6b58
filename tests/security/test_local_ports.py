"""Ports on loopback and other users of the machine, who listen at further ports and steal cookies."""

from __future__ import annotations

import http.client
import http.server
import os
import stat
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dios import limits
from tests.support.node.command_user import Person
from tests.support.node.other_users import as_user
from tests.support.node.running_node import wait_until

STRANGER = 65_531
WAIT_S = 30
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for another user")


class Thief(http.server.BaseHTTPRequestHandler):
    """A server of another user that keeps every cookie and answers with a page of its own."""

    def do_GET(self) -> None:
        """Keep the cookie."""
        assert isinstance(self.server, ThievingServer)
        self.server.loot.append(self.headers.get("Cookie") or "")
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>thief</title><p>free figures")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - of the package
        """Log nothing."""


class ThievingServer(http.server.ThreadingHTTPServer):
    """The port of a thief."""

    def __init__(self, host: str) -> None:
        super().__init__((host, 0), Thief)
        self.loot: list[str] = []

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}/"


@contextmanager
def thief_at(host: str) -> Iterator[ThievingServer]:
    """A hostile server at a free port of a host."""
    with ThievingServer(host) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def status(root: str, path: str = "/tasks", **headers: str) -> int:
    """The status of an answer; 0 if the connection ended without one."""
    line = http.client.HTTPConnection(urlsplit(root).netloc, timeout=WAIT_S)
    try:
        line.request("GET", path, headers=headers)
        return line.getresponse().status
    except (ConnectionError, http.client.BadStatusLine):
        return 0
    finally:
        line.close()


def status_for(uid: int, work: Callable[[], int]) -> int:
    """The same, for a process of another user."""
    reader, writer = os.pipe()

    def report() -> None:
        os.write(writer, f"{work()}\n".encode())

    pid = as_user(uid, report)
    os.close(writer)
    with os.fdopen(reader) as told:
        line = told.readline()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    return int(line)


# -- the dashboard --------------------------------------------------------------------------------
pytest.importorskip("nicegui", reason="the extra web is missing")
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402 - see above

from tests.support.web.dashboard import MISSING, Pages, browser, imagined_cluster  # noqa: E402 - see above

_ATTACK = """
const done = arguments[arguments.length - 1], root = arguments[0], outcome = {};
const frame = document.createElement("iframe");
frame.src = root + "/tasks";
document.body.append(frame);
fetch(root + "/tasks", {credentials: "include"}).then(answer => answer.text()).then(
  text => { outcome.fetched = text.length; }, () => { outcome.fetched = 0; }).then(() => {
  const path = "/_nicegui_ws/socket.io/?EIO=4&transport=websocket";
  const line = new WebSocket(root.replace("http", "ws") + path);
  line.onopen = () => { outcome.line = "open"; done(outcome); };
  line.onerror = () => { outcome.line = "refused"; done(outcome); };
});
"""


@pytest.mark.skipif(
    bool(MISSING), reason=f"missing: {', '.join(MISSING)}: apt install chromium chromium-driver"
)
def test_a_stolen_cookie_opens_nothing(tmp_path: Path) -> None:
    """A real browser gives the cookie to no other host, and one who steals it on this host is not served."""
    with ExitStack() as kept:
        address = kept.enter_context(imagined_cluster(tmp_path, 3))
        driver = kept.enter_context(browser(tmp_path / "browser"))
        pages = Pages(driver, address)
        root, host = pages.root, urlsplit(pages.root).hostname
        assert host is not None
        elsewhere, here = (kept.enter_context(thief_at(place)) for place in ("127.0.0.1", host))
        for thief in (elsewhere, here):
            driver.get(thief.url)
            WebDriverWait(driver, WAIT_S).until(lambda _, thief=thief: bool(thief.loot))  # type: ignore[misc] # bound early
        assert set(elsewhere.loot) == {""}
        (stolen,) = {cookie for cookie in here.loot if cookie}
        assert stolen.startswith("dios-ui-")
        # Its own page, in the browser that has the cookie, reads nothing.
        driver.set_script_timeout(WAIT_S)
        assert driver.execute_async_script(_ATTACK, root) == {"fetched": 0, "line": "refused"}
        # The cookie is genuine, and of no use to anybody else.
        assert status(root, Cookie=stolen) == 200
        if os.geteuid() == 0:
            assert status_for(STRANGER, lambda: status(root, Cookie=stolen)) == 0
        # So is the token, which was used.
        token = address.partition("#token=")[2]
        request = urllib.request.Request(f"{root}/enter", token.encode(), {"Origin": root})  # noqa: S310 - http
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(request, timeout=WAIT_S)  # noqa: S310 - the same
        assert status(root, Cookie=stolen, Host=f"evil.example:{urlsplit(root).port}") == 421


def test_the_token_of_a_dashboard_is_in_no_argument(tmp_path: Path) -> None:
    """--open gives the browser a private file, which is gone when the token was used."""
    person = Person(tmp_path)
    opened = tmp_path / "opened"
    script = person.writes(
        "browser.sh", f'#!/bin/sh\nprintf "%s" "$*" >{opened}.part\nmv {opened}.part {opened}\n'
    )
    script.chmod(0o755)
    person.environment["BROWSER"] = f"{script} %s"
    person.types("dios-node start --data ./node0 --detach --accept-weaker-sandbox yes")
    dashboard = person.starts("dios ui --open")
    try:
        assert dashboard.stderr is not None
        link = dashboard.stderr.readline().split()[-1]
        root, _, token = link.partition("/enter#token=")
        wait_until(opened.exists, "the browser was started")
        argument = opened.read_text()
        assert token not in argument
        page = Path(urllib.parse.unquote(urlsplit(argument).path))
        assert link in page.read_text()
        assert stat.S_IMODE(page.stat().st_mode) == 0o600
        shown = subprocess.run(["ps", "axeww"], capture_output=True, text=True, check=True).stdout
        assert token not in shown
        request = urllib.request.Request(f"{root}/enter", token.encode(), {"Origin": root})  # noqa: S310 - http
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:  # noqa: S310 - the same
            assert answer.status == 204
        assert "Ctrl-C" in dashboard.stderr.readline()
        assert "another one can at" in dashboard.stderr.readline()
        wait_until(lambda: not page.exists(), "the page is gone")
    finally:
        dashboard.terminate()
        dashboard.communicate(timeout=WAIT_S)
        person.types("dios-node stop")


# -- metrics --------------------------------------------------------------------------------------
@contextmanager
def exporter(*users: int) -> Iterator[str]:
    """A server of the metrics of a node that does not run, at a free port; the address of it."""
    pytest.importorskip("prometheus_client", reason="the extra metrics is missing")
    from dios.node.exporter_places import ExporterPlace
    from dios.node.metrics.exporter import start

    with http.server.HTTPServer(("127.0.0.1", 0), Thief) as probe:
        port = int(probe.server_address[1])
    stop = start("/nonexistent/node.sock", ExporterPlace("127.0.0.1", port), users=users)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        stop()


ANSWERED = 500
"""The status of an answer about a node that does not run."""


@needs_root
def test_metrics_are_for_the_users_that_may_read_them(caplog: pytest.LogCaptureFixture) -> None:
    """Another user's connection is closed and logged, unless the operator names that user."""
    with exporter() as root:
        assert status(root, "/metrics") == ANSWERED
        assert status_for(STRANGER, lambda: status(root, "/metrics")) == 0
    refused = [record for record in caplog.records if "refused" in record.getMessage()]
    assert [record.__dict__["uid"] for record in refused] == [STRANGER]
    with exporter(STRANGER) as root:
        assert status_for(STRANGER, lambda: status(root, "/metrics")) == ANSWERED


def test_metrics_are_for_no_page_of_a_browser() -> None:
    """A request for a foreign name, as a page sends it after its name has this address, gets nothing."""
    with exporter() as root:
        assert status(root, "/metrics", Host=f"localhost:{urlsplit(root).port}") == ANSWERED
        assert status(root, "/metrics", Host="evil.example") == 421


def test_silent_readers_of_metrics_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest of too many connections goes for the next one."""
    monkeypatch.setattr(limits, "EXPORTER_CONNECTIONS_MAX", 4)
    with exporter() as root, ExitStack() as kept:
        silent = [http.client.HTTPConnection(urlsplit(root).netloc, timeout=WAIT_S) for _ in range(6)]
        for line in silent:
            line.connect()
            kept.callback(line.close)
        assert status(root, "/metrics") == ANSWERED
        assert silent[0].sock.recv(1) == b""

"""A headless Chromium reads every page of the dashboard of a real cluster of three."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from dios.node import daemon
from tests.support.web.accessibility import WHY_NOT, overflow_on_phone, violations
from tests.support.web.dashboard import (
    MISSING,
    Cluster,
    Pages,
    address_of,
    cluster_in,
    dashboard_of,
    imagined_cluster,
)
from tests.support.web.imagined import SHOWN

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        bool(MISSING), reason=f"missing: {', '.join(MISSING)}: apt install chromium chromium-driver"
    ),
]
EVIL = "<img src=x onerror=document.title='broken'>"
EVIL_FILE = "<b>rows</b>.txt"
PROGRAM = "import time\nprint('<b>bold</b> \\x1b[31m \\u202e', flush=True)\ntime.sleep(600)\n"
STRANGER = 65_531
MANY = 10_000
_CHART = "getElement([...document.querySelectorAll('.nicegui-echart')][0].id.slice(1)).chart"
PAGES = {
    "/": ("n1", "n2", "n3", "rack r1", "drain", "version", "KB/s out"),
    "/tasks": (EVIL, "running"),
    "/objects": (EVIL_FILE, "it may write the object", "durable_blob"),
    "/capabilities": ("read", "write"),
    "/scheduling": ("Flow from tasks",),
    "/shares": ("shares are unknown",),
    "/jobs": ("Tasks of one parent",),
    "/functions": ("Network functions on this machine",),
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Start three nodes with a file and a task with a hostile label, in a folder that others can pass."""
    folder = Path(tempfile.mkdtemp(prefix="dios-"))
    folder.chmod(0o711)
    (folder / "job.py").write_text(PROGRAM)
    (folder / "rows.txt").write_text("rows")
    with cluster_in(folder, {"coordinator": "off", "allowed-uids": str(STRANGER)}) as live_cluster:
        live_cluster.dios("group", "create", "g")
        live_cluster.dios("put", "rows.txt", "--group", "g", "--as", EVIL_FILE)
        live_cluster.start("run", "job.py", "--title", EVIL, "--on", "n1", "--input", f"rows=g/{EVIL_FILE}")
        yield live_cluster
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def pages(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    """Open a browser."""
    with dashboard_of(cluster, tmp_path_factory.mktemp("browser")) as live_pages:
        yield live_pages


def test_every_page_shows_the_cluster(pages: Pages) -> None:
    """Each page has what it promises; names are text, and the browser reports no error."""
    for path, words in PAGES.items():
        assert "secrecy" not in pages.open(path, *words), "nothing has a label"
        assert pages.driver.title.endswith("- DIOS")
        assert pages.driver.find_elements(By.TAG_NAME, "h1"), path
        assert not pages.driver.find_elements(By.CSS_SELECTOR, "main img, main b"), path
        assert not overflow_on_phone(pages), path
    errors = [entry for entry in pages.log() if entry["level"] == "SEVERE"]
    assert not errors


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_every_page_is_accessible(cluster: Cluster, pages: Pages) -> None:
    """No page breaks a rule of axe-core, in light and dark."""
    (task,) = [row for row in json.loads(cluster.dios("ps", "--json")) if row["label"] == EVIL]
    (file,) = json.loads(cluster.dios("ls", "--json"))
    further = (f"/tasks/{task['fingerprint']}", f"/objects/{file['fingerprint']}")
    problems = []
    for path in (*PAGES, *further, f"/capabilities?of={file['fingerprint']}"):
        pages.open(path, *PAGES.get(path, ()))
        problems += [f"{path}: {violation}" for violation in violations(pages)]
    assert not problems, "\n".join(problems)


def test_the_keyboard_reaches_the_pages(pages: Pages) -> None:
    """Tab goes through the links of the pages, and Enter opens the focused one."""
    pages.open("/", "n1")
    for _ in range(2):
        pages.driver.switch_to.active_element.send_keys(Keys.TAB)
    focused = pages.driver.switch_to.active_element
    assert focused.text == "Tasks"
    focused.send_keys(Keys.ENTER)
    pages.wait_for("Search")


def test_a_reference_is_retired(cluster: Cluster, pages: Pages) -> None:
    """The page of an object has its replicas; that of its references retires one, and tells its story."""
    (file,) = json.loads(cluster.dios("ls", "--json"))
    pages.open(f"/objects/{file['fingerprint']}", EVIL_FILE, "replicas", "r1", "durable")
    pages.open(f"/capabilities?of={file['fingerprint']}", "delegated by", "its holder ends", "created it")
    pages.click("retire")
    pages.wait_for("Take back", "yes")
    pages.click("Yes")
    pages.wait_for("retired the reference of")
    assert "delegated by" not in pages.text()


@pytest.mark.skipif(bool(os.getuid()), reason="only root can become another user")
def test_another_user_sees_nothing_of_the_first(cluster: Cluster, pages: Pages) -> None:
    """No page of another principal has a label, a file, a fingerprint or a reference of the first one's."""
    (task,) = [row for row in json.loads(cluster.dios("ps", "--json")) if row["label"] == EVIL]
    (file,) = json.loads(cluster.dios("ls", "--json"))
    (socket,) = cluster.folder.rglob("n1/node.sock")
    for place in socket.parents:
        if place.is_relative_to(cluster.folder):
            place.chmod(0o711)
    secrets = (EVIL, EVIL_FILE, task["fingerprint"], file["fingerprint"], "<b>bold</b>")
    with address_of(cluster.start_as(STRANGER, socket)) as address:
        other = Pages(pages.driver, address)
        expected = {
            "/tasks": "0 tasks",
            "/objects": "only the node's own user",
            "/capabilities": "only the node's own user",
            "/jobs": "no task has started others",
        }
        further = (f"/objects/{file['fingerprint']}", f"/capabilities?of={file['fingerprint']}")
        for path in (*PAGES, *further):
            text = other.open(path, expected.get(path, ""))
            assert not [secret for secret in secrets if secret in text and secret not in path], (path, text)
        other.open(f"/tasks/{task['fingerprint']}", "knows no task")


def test_a_task_is_read_and_killed(cluster: Cluster, pages: Pages) -> None:
    """The page of a task shows its output as text, and its button ends it after a question."""
    (task,) = [row for row in json.loads(cluster.dios("ps", "--json")) if row["label"] == EVIL]
    pages.open(f"/tasks/{task['fingerprint']}", "<b>bold</b>", "\\x1b[31m \\u202e", "running")
    pages.click("kill")
    pages.wait_for("yes")
    pages.click("Yes")
    pages.wait_for("killed")


def test_hostile_texts_of_many_tasks_are_text(pages: Pages, tmp_path: Path) -> None:
    """HTML, scripts, colours and directions of others are text on every page; many tasks can be searched.

    Tags of secrecy are among these texts, on all pages whose rows can have a label.
    """
    with imagined_cluster(tmp_path, MANY) as address:
        other = Pages(pages.driver, address)
        for path in (*PAGES, f"/tasks/{1:012x}", f"/objects/{1:012x}", f"/capabilities?of={1:012x}"):
            words = () if path == "/functions" or path.startswith("/objects/") else (SHOWN,)
            text = other.open(path, *words)
            assert other.driver.title.endswith("- DIOS"), path
            assert not other.driver.find_elements(By.CSS_SELECTOR, ".q-page img, .q-page script"), path
            assert "\x1b" not in text, path
            assert "\u202e" not in text, path
            is_labelled = path in {"/tasks", "/objects", "/capabilities", f"/capabilities?of={1:012x}"}
            assert ("secrecy" in text) is is_labelled, path
        other.open("/shares", "place 2, next in 41 s", "1 more users share")
        other.open("/tasks", f"{MANY + 1} tasks")
        assert other.driver.execute_script(f"return {_CHART}.getOption().series[0].data.length") == MANY
        other.driver.find_element(By.CSS_SELECTOR, "[aria-label='zoom in']").click()
        while other.driver.execute_script(f"return {_CHART}.getOption().dataZoom[0].end") > 99:
            pass
        other.driver.find_element(By.CSS_SELECTOR, "input").send_keys(f"{26:012x}")
        other.wait_for("\n1 task\n")
        assert other.driver.current_url.endswith(f"/tasks?q={26:012x}")
        other.open("/tasks?q=waits", "\n1 task\n", "abcdef")


def test_a_lost_node_is_seen(cluster: Cluster, pages: Pages) -> None:
    """Nodes that drain or are killed are shown as such without a reload."""
    pages.open("/", "n3", "alive")
    cluster.dios("node", "drain", "n2")
    pages.wait_for("draining", "undrain")
    (socket,) = cluster.folder.rglob("n3/node.sock")
    running = daemon.find(socket)
    assert running is not None
    os.kill(running.pid, signal.SIGKILL)
    pages.wait_for("dead", "It does not answer since", "forget")


def test_without_the_token_there_is_nothing(pages: Pages) -> None:
    """Another browser profile, here one without cookies, gets the entrance only."""
    pages.driver.delete_all_cookies()
    text = pages.open("/tasks", "This page needs the address")
    assert EVIL not in text

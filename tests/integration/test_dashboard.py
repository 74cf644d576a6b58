"""A headless Chromium reads every page of the dashboard of a real cluster of three."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.support.web.accessibility import WHY_NOT, overflow_on_phone, violations
from tests.support.web.dashboard import MISSING, Cluster, Pages, cluster_in, dashboard_of

pytestmark = pytest.mark.skipif(
    bool(MISSING), reason=f"missing: {', '.join(MISSING)}: apt install chromium chromium-driver"
)
EVIL = "<img src=x onerror=document.title='broken'>"
EVIL_FILE = "<b>rows</b>.txt"
PROGRAM = "import time\nprint('<b>bold</b> \\x1b[31m \\u202e', flush=True)\ntime.sleep(600)\n"
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
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start three nodes with a file and a task with a hostile label."""
    folder = tmp_path_factory.mktemp("ui")
    (folder / "job.py").write_text(PROGRAM)
    (folder / "rows.txt").write_text("rows")
    with cluster_in(folder, {"coordinator": "off"}) as found:
        found.dios("group", "create", "g")
        found.dios("put", "rows.txt", "--group", "g", "--as", EVIL_FILE)
        found.start("run", "job.py", "--label", EVIL, "--host", "n1", "--input", f"rows=g/{EVIL_FILE}")
        yield found


@pytest.fixture(scope="module")
def pages(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    """Open a browser."""
    with dashboard_of(cluster, tmp_path_factory.mktemp("browser")) as found:
        yield found


def test_every_page_shows_the_cluster(pages: Pages) -> None:
    """Each page has what it promises; names are text, and the browser reports no error."""
    for path, words in PAGES.items():
        pages.open(path, *words)
        assert pages.driver.title.endswith("- DIOS")
        assert pages.driver.find_elements(By.TAG_NAME, "h1"), path
        assert not pages.driver.find_elements(By.CSS_SELECTOR, "main img, main b"), path
        assert not overflow_on_phone(pages), path
    errors = [one for one in pages.log() if one["level"] == "SEVERE"]
    assert not errors


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_every_page_is_accessible(cluster: Cluster, pages: Pages) -> None:
    """No page breaks a rule of axe-core, in light and dark."""
    (task,) = [one for one in json.loads(cluster.dios("ps", "--json")) if one["label"] == EVIL]
    (file,) = json.loads(cluster.dios("ls", "--json"))
    further = (f"/tasks/{task['fingerprint']}", f"/objects/{file['fingerprint']}")
    found = []
    for path in (*PAGES, *further, f"/capabilities?of={file['fingerprint']}"):
        pages.open(path, *PAGES.get(path, ()))
        found += [f"{path}: {one}" for one in violations(pages)]
    assert not found, "\n".join(found)


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


def test_a_task_is_read_and_killed(cluster: Cluster, pages: Pages) -> None:
    """The page of a task shows its output as text, and its button ends it after a question."""
    (task,) = [one for one in json.loads(cluster.dios("ps", "--json")) if one["label"] == EVIL]
    pages.open(f"/tasks/{task['fingerprint']}", "<b>bold</b>", "\\x1b[31m \\u202e", "running")
    pages.click("kill")
    pages.wait_for("yes")
    pages.click("Yes")
    pages.wait_for("killed")


def test_a_lost_node_is_seen(cluster: Cluster, pages: Pages) -> None:
    """A node that stops is shown as such without a reload."""
    pages.open("/", "n3", "alive")
    cluster.dios("node", "drain", "n2")
    pages.wait_for("draining", "undrain")


def test_without_the_token_there_is_nothing(pages: Pages) -> None:
    """Another browser profile, here one without cookies, gets the entrance only."""
    pages.driver.delete_all_cookies()
    text = pages.open("/tasks", "This page needs the address")
    assert EVIL not in text

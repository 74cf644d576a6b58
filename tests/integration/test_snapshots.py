"""Snapshots of sandboxes with an image: what they keep, where they begin again, and what they store."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dios
import dios.aio
from dios.errors import InvalidError, NotSupportedError, StaleError
from dios.lib.environments import archives
from dios.node import local_cluster
from tests.support.layouts import LayoutMaker, busybox_layer, entry, folder, layer_of
from tests.support.node.command_user import Person
from tests.support.node.confinement import gvisor_or_skip, runtimes_or_skip
from tests.support.node.kept_cluster import kill
from tests.support.node.running_node import RunningNode, running_node

ROOT = Path(__file__).parents[2]
PATIENCE_S = 300

CHANGES = """
import os, shutil
os.makedirs('/srv/deep')
open('/srv/deep/own', 'w').write('own')
os.symlink('own', '/srv/deep/link')
os.link('/srv/deep/own', '/srv/deep/same')
os.chmod('/srv/deep/own', 0o640)
os.setxattr('/srv/deep/own', 'user.mark', b'kept')
os.utime('/srv/deep/own', ns=(0, 1_234_567_890_123_456_789))
open('/etc/release', 'w').write('changed')
os.remove('/etc/passwd')
shutil.rmtree('/data')
os.mkdir('/data')
open('/data/new', 'w').write('new')
os.mkfifo('/tmp/pipe')
"""
STATE = """
import os
facts = os.stat('/srv/deep/own')
print([open('/srv/deep/own').read(), os.readlink('/srv/deep/link'), facts.st_nlink,
       oct(facts.st_mode), facts.st_uid, os.getxattr('/srv/deep/own', 'user.mark'), facts.st_mtime_ns,
       open('/etc/release').read(), os.path.exists('/etc/passwd'), os.listdir('/data'),
       os.path.exists('/tmp/pipe')])
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image of a busybox, with a folder of data."""
    runtimes_or_skip()
    layer = layer_of([folder("data"), entry("data/old", b"old"), entry("data/big", os.urandom(3_000_000))])
    layout = LayoutMaker(tmp_path_factory.mktemp("layout") / "tiny").add([busybox_layer(), layer], "tiny")
    return f"oci-layout:{layout}:tiny"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """One node for the tests of this module."""
    runtimes_or_skip()
    with running_node(tmp_path_factory.mktemp("node") / "data", container_runtime="any") as running:
        yield running


@pytest.fixture
def group(node: RunningNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A new group, of which these tests are a member."""
    person = Person(tmp_path)
    person.environment["DIOS_NODE"] = node.place
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / ".config"))
    person.types("dios group create tries")
    return "dios://tries"


def stored_files(node: RunningNode) -> dict[str, int]:
    """The paths and sizes of the files of the group."""
    from dios.lib.files.catalogue_places import KeyringCatalogue
    from dios.lib.files.group_files import GroupFiles

    with dios.connect(node.place) as control:
        keyring = dios.Keyring.load()
        member = control.group(bytes(keyring.groups["tries"]))
        assert member is not None
        files = GroupFiles(control, member, KeyringCatalogue(control, keyring, "tries", member))
        return {row.file: row.size for row in files.entries()}


def test_a_snapshot_has_all_that_was_changed(node: RunningNode, image: str, group: str) -> None:
    """Contents, links, permissions, attributes and times; removed files, and a folder in place of another."""
    with dios.Sandbox(node=node.place, image=image) as box:
        assert box.run(CHANGES).ok
        expected = box.run(STATE).stdout
        snapshot = box.snapshot(f"{group}/changed")
        assert expected == box.run(STATE).stdout
    for given in (snapshot, f"{group}/changed"):
        with dios.Sandbox(node=node.place, snapshot=given) as other:
            assert other.run(STATE).stdout == expected.replace("True]", "False]")
            assert other.exec("cat", "/srv/deep/same").stdout == "own"


def test_a_snapshot_of_a_snapshot_has_the_changes_of_both(node: RunningNode, image: str, group: str) -> None:
    """A file that comes back, a folder that is replaced again, and a link whose first path is removed."""
    with dios.Sandbox(node=node.place, image=image) as box:
        box.run(CHANGES)
        first = box.snapshot(f"{group}/first")
    with dios.Sandbox(node=node.place, snapshot=first) as box:
        code = """
import os, shutil
open('/etc/passwd', 'w').write('again')
os.remove('/srv/deep/own')
shutil.rmtree('/data')
os.remove('/etc/release')
os.makedirs('/etc/release/folder')
"""
        assert box.run(code).ok
        second = box.snapshot(f"{group}/second")
    code = """
import os
print([open('/etc/passwd').read(), sorted(os.listdir('/srv/deep')), open('/srv/deep/same').read(),
       os.path.exists('/data'), os.listdir('/etc/release')])
"""
    with dios.Sandbox(node=node.place, snapshot=second) as box:
        assert box.run(code).stdout == "['again', ['link', 'same'], 'own', False, ['folder']]\n"
        box.run("import os; os.mkdir('/data')")
        box.reset()
        assert box.run(code).stdout.endswith("False, ['folder']]\n")


def test_a_sandbox_in_gvisor_begins_with_a_snapshot(node: RunningNode, image: str, group: str) -> None:
    """With what was changed and removed; it has no snapshots itself."""
    gvisor_or_skip()
    with dios.Sandbox(node=node.place, image=image) as box:
        box.run(CHANGES)
        box.files.write("/tmp/note", "kept")
        snapshot = box.snapshot(f"{group}/changed")
    with dios.Sandbox(node=node.place, snapshot=snapshot, isolation="gvisor") as other:
        for _ in range(2):
            seen = other.exec("sh", "-c", "cat /srv/deep/own /etc/release /tmp/note; ls /data /etc")
            assert seen.stdout == "ownchangedkept/data:\nnew\n\n/etc:\nrelease\n"
            other.exec("rm", "-r", "/data", "/tmp/note")
            other.reset()
        with pytest.raises(NotSupportedError, match="in gVisor has no snapshots"):
            other.snapshot(f"{group}/further")


def test_a_similar_snapshot_stores_little(node: RunningNode, image: str, group: str) -> None:
    """Pieces that the group has are not stored again, and the image once for all its snapshots."""
    with dios.Sandbox(node=node.place, image=image) as box:
        box.run("import os\nfor i in range(3): open(f'/srv{i}', 'wb').write(os.urandom(5_000_000))")
        box.snapshot(f"{group}/one")
        before = stored_files(node)
        box.run("open('/srv1', 'r+b').write(b'begin')\nopen('/small', 'w').write('x')")
        box.snapshot(f"{group}/two")
        after = stored_files(node)
    assert sum(before.values()) > 15_000_000
    added = {path: size for path, size in after.items() if before.get(path) != size}
    assert 4_000_000 < sum(added.values()) < 5_000_000, added


def test_another_machine_and_an_empty_node_start_from_it(
    node: RunningNode, image: str, group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group has the image, too; nothing of it has to be there."""
    with dios.Sandbox(node=node.place, image=image) as box:
        box.files.write("/own", "own")
        snapshot = box.snapshot(f"{group}/own")
    (tmp_path / "cache").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    person = Person(tmp_path / "cache")
    person.environment["DIOS_NODE"] = node.place
    person.types("dios env prune --unused 0s")
    assert not list((node.data / "environments").glob("*/*/about.json"))
    with dios.Sandbox(node=node.place, snapshot=snapshot) as box:
        assert box.files.read("/own") == b"own"
        assert box.exec("cat", "/etc/release").stdout == "tiny 1.0\n"


def test_a_removal_takes_what_no_other_snapshot_needs(node: RunningNode, image: str, group: str) -> None:
    """The other one stays whole; after the last one nothing is left."""
    with dios.Sandbox(node=node.place, image=image) as box:
        box.run("import os\nopen('/both', 'wb').write(os.urandom(5_000_000))")
        first = box.snapshot(f"{group}/one")
        box.run("import os\nopen('/alone', 'wb').write(os.urandom(5_000_000))")
        second = box.snapshot(f"{group}/two")
    before = sum(stored_files(node).values())
    with dios.connect(node.place) as control:
        dios.remove_snapshot(second, node=control)
        assert 5_000_000 <= before - sum(stored_files(node).values()) < 6_000_000
        with dios.Sandbox(node=node.place, snapshot=first) as box:
            assert len(box.files.read("/both")) == 5_000_000
        dios.remove_snapshot(first.place, node=control)
        assert not stored_files(node)
        with pytest.raises(InvalidError, match="no snapshot 'one'"):
            dios.Sandbox(node=control, snapshot=first)


def test_the_value_of_a_snapshot_means_one_state(node: RunningNode, image: str, group: str) -> None:
    """Its place has the latest state, and the value of an earlier one is an error then."""
    with dios.Sandbox(node=node.place, image=image) as box:
        first = box.snapshot(f"{group}/state")
        box.files.write("/own", "later")
        assert box.snapshot(f"{group}/state") != first
    with pytest.raises(StaleError, match="another snapshot"):
        dios.Sandbox(node=node.place, snapshot=first)
    with dios.Sandbox(node=node.place, snapshot=first.place) as box:
        assert box.files.read("/own") == b"later"


@pytest.mark.parametrize("place", ["tries/x", "dios://tries", "dios://tries/a/b", "dios://tries/parts", ""])
def test_a_place_is_a_group_and_a_name(node: RunningNode, image: str, group: str, place: str) -> None:
    """Others are refused before anything is stored."""
    del group
    with (
        dios.Sandbox(node=node.place, image=image) as box,
        pytest.raises(InvalidError, match="no place of a snapshot"),
    ):
        box.snapshot(place)


def test_what_has_no_image_has_no_snapshot(node: RunningNode, image: str, group: str) -> None:
    """A sandbox without an image, a missing snapshot, and two things to begin with."""
    with dios.Sandbox(node=node.place) as box, pytest.raises(InvalidError, match="with an image"):
        box.snapshot(f"{group}/pure")
    with pytest.raises(InvalidError, match="no snapshot 'nothing'"):
        dios.Sandbox(node=node.place, snapshot=f"{group}/nothing")
    with pytest.raises(InvalidError, match="leave out the others"):
        dios.Sandbox(node=node.place, snapshot=f"{group}/nothing", image=image)


def test_programs_stand_still_and_go_on(node: RunningNode, image: str, group: str) -> None:
    """A program that writes all the time does not change a file that is read, and writes on afterwards."""
    with dios.Sandbox(node=node.place, image=image) as box:
        loop = "while true; do echo a >/a; echo b >/b; done"
        box.exec("sh", "-c", f"({loop}) >/dev/null 2>&1 &")
        box.snapshot(f"{group}/moving")
        box.run("import os, time\nos.remove('/a')\nwhile not os.path.exists('/a'): time.sleep(0.01)")
        assert box.exec("cat", "/b").ok


def test_forks_of_an_image_begin_with_its_files(node: RunningNode, image: str) -> None:
    """They are independent afterwards, and a reset returns to the state of the fork."""
    with dios.Sandbox(node=node.place, image=image) as box:
        box.run("variable = 1\nopen('/state', 'w').write('begin')")
        forks = box.fork(3)
        box.files.write("/state", "origin")
        for number, fork in enumerate(forks):
            assert fork.files.read("/state") == b"begin"
            fork.files.write("/state", str(number))
        assert [fork.files.read("/state") for fork in forks] == [b"0", b"1", b"2"]
        forks[0].reset()
        assert forks[0].files.read("/state") == b"begin"
        with forks[1].fork() as second:
            assert second.files.read("/state") == b"1"
            assert second.run("variable").error is not None
        for fork in forks:
            fork.close()
        assert box.files.read("/state") == b"origin"
        with pytest.raises(InvalidError, match="number of forks"):
            box.fork(0)


def test_a_snapshot_that_the_cache_lost_is_read_again(
    node: RunningNode, image: str, group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the image of a sandbox that began with one, for a snapshot in a group without it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with dios.Sandbox(node=node.place, image=image) as box:
        box.files.write("/own", "own")
        for path in archives.folder_of_archives().glob("*.archive"):
            path.unlink()
        snapshot = box.snapshot(f"{group}/own")
    for path in archives.folder_of_archives().glob("*.archive"):
        path.unlink()
    with dios.Sandbox(node=node.place, snapshot=snapshot) as box:
        assert box.files.read("/own") == b"own"


async def test_async_sandboxes_have_snapshots_and_forks(node: RunningNode, image: str, group: str) -> None:
    """As the blocking ones do; they need the place of the node."""
    async with dios.aio.Sandbox(node=node.place, image=image) as box:
        await box.files.write("/own", "own")
        snapshot = await box.snapshot(f"{group}/own")
        first, second = await box.fork(2)
        await first.files.write("/own", "other")
        assert await second.files.read("/own") == b"own"
        await first.close()
        await second.close()
    async with dios.aio.Sandbox(node=node.place, snapshot=snapshot) as box:
        assert await box.files.read("/own") == b"own"
    async with dios.aio.open_node(node.place) as opened:
        with pytest.raises(InvalidError, match="connection of their own"):
            await dios.aio.Sandbox(node=opened, snapshot=snapshot).__aenter__()


def test_the_example_keeps_the_best_of_its_tries(node: RunningNode, image: str, group: str) -> None:
    """A bad patch harms no other try, and another sandbox goes on with the best one."""
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "repair.py", "--image", image, "--group", "tries"],
        env={**os.environ, "DIOS_NODE": node.place},
        capture_output=True,
        check=False,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "before: 2 of 4 tests pass",
        "start lower: 3 of 4 tests pass",
        "print nothing: 3 of 4 tests pass",
        "start with the first: 4 of 4 tests pass",
        "delete it: 1 of 4 tests pass",
        f"{group}/repaired: 4 of 4 tests pass",
    ]


@pytest.mark.long
def test_a_snapshot_survives_its_node(image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that promises replicas has it after its node was killed; another node goes on with it."""
    settings = {"coordinator": "off", "container_runtime": "any", "replica_grace": "1s"}
    cluster = local_cluster.make(tmp_path / "cluster", nodes=3, keep=True, settings=settings)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / ".config"))
    person = Person(tmp_path)
    first, second, _ = cluster.nodes
    person.environment["DIOS_NODE"] = str(first.data)
    try:
        local_cluster.start(cluster)
        person.types("dios group create tries")
        person.types("dios group set tries --replicas 2")
        with dios.Sandbox(node=first.data, image=image) as box:
            box.files.write("/own", "own")
            snapshot = box.snapshot("dios://tries/own")
        kill(first.socket)
        # Neither this machine nor the other node has anything of it.
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        with dios.Sandbox(node=second.data, snapshot=snapshot) as box:
            assert box.exec("cat", "/own", "/etc/release").stdout == "owntiny 1.0\n"
    finally:
        for node in cluster.nodes:
            kill(node.socket)

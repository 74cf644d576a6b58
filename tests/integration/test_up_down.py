"""Clusters as a person types them: `dios up` on one machine, and nodes that join one by one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node.command_user import DEADLINE_SECONDS, Person
from tests.support.node.running_node import exists, wait_until

pytestmark = pytest.mark.long

NAMES = ["n1", "n2", "n3"]


def nodes(person: Person, asked: str) -> dict[str, str]:
    """The status of each node, as one of them sees it."""
    told = json.loads(person.types(f"dios node ls --json --node {asked}").stdout)
    return {row["name"]: row["status"] for row in told}


def pid_of(person: Person, name: str) -> int:
    """The process of a node of the usual local cluster."""
    return int((cluster_of(person) / name / "node.pid").read_text())


def cluster_of(person: Person) -> Path:
    """Where a person's local cluster is."""
    return person.home / ".local" / "state" / "dios" / "cluster"


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    """A person with a cluster of three nodes in two racks, and a group."""
    someone = Person(tmp_path_factory.mktemp("home"))
    someone.types("dios up --nodes 3 --racks 2 --pool-size 1")
    try:
        someone.types("dios group create analytics")
        yield someone
    finally:
        someone.types("dios down")


def test_every_node_sees_every_other(person: Person) -> None:
    """When `dios up` has returned, each of its nodes, asked by its name, says that all are alive."""
    for name in NAMES:
        assert nodes(person, name) == dict.fromkeys(NAMES, "alive")
    assert "this is n1; 3 of 3 nodes answer" in person.types("dios-node status").stdout


def test_up_again_says_what_runs(person: Person) -> None:
    """A second `dios up` starts nothing; one that wants another cluster there is refused."""
    told = json.loads(person.types("dios up --json").stdout)
    assert [(row["name"], row["rack"], row["started"]) for row in told["nodes"]] == [
        ("n1", "r1", False),
        ("n2", "r2", False),
        ("n3", "r1", False),
    ]
    assert told["default"]
    assert "has 3 nodes" in person.types("dios up --nodes 4", status=1).stderr
    assert "node.toml" in person.types("dios up --pool-size 3", status=1).stderr


def test_an_object_is_everywhere(person: Person) -> None:
    """What is put at one node is read at another; `stat` says where it is, whoever is asked."""
    person.writes("a.txt", "a b c\n")
    person.types("dios put a.txt --group analytics")
    assert person.types("dios get a.txt --node n3").stdout == "a b c\n"
    for asked in ("n1", "n2"):
        told = json.loads(person.types(f"dios stat a.txt --json --node {asked}").stdout)
        assert [(row["node"], row["rack"]) for row in told["replicas"]] == [("n1", "r1")]
        assert not told["incomplete"]


def test_an_object_grows_from_afar(person: Person) -> None:
    """A write through another node may make an object longer: here the catalogue, which is at n1."""
    person.writes("first.txt", "1")
    person.writes("second.txt", "2")
    person.types("dios put first.txt --group analytics --node n1")
    person.types("dios put second.txt --group analytics --node n2")
    listed = {item["file"] for item in json.loads(person.types("dios ls --json").stdout)}
    assert {"first.txt", "second.txt"} <= listed


def test_a_replica_is_one_more_object(person: Person) -> None:
    """After `replicate` both nodes have the object, durable, with the same bytes."""
    person.writes("b.txt", "twice\n")
    person.types("dios put b.txt --group analytics")
    replica = json.loads(person.types("dios replicate b.txt --on n2 --durable --json").stdout)
    assert (replica["node"], replica["persistence"], replica["size"]) == ("n2", "durable", 6)
    told = json.loads(person.types("dios stat b.txt --json").stdout)
    assert sorted(row["node"] for row in told["replicas"]) == ["n1", "n2"]
    assert len({row["id"] for row in told["replicas"]}) == 2


def test_rm_destroys_every_replica(person: Person) -> None:
    """What `rm` destroys is gone on all nodes: nobody finds one more replica by the name."""
    person.writes("e.txt", "thrice\n")
    name = json.loads(person.types("dios put e.txt --group analytics --json --names").stdout)[0]["name"]
    person.types("dios replicate e.txt --on n2 --durable")
    person.types("dios replicate e.txt --on n3")
    assert json.loads(person.types("dios rm e.txt --json").stdout)[0]["replicas"] == 3
    for asked in ("n1", "n2", "n3"):
        assert "cannot find" in person.types("dios stat", name, "--node", asked, status=1).stderr


READ_ANYWHERE = """
import fsspec
near, far = (fsspec.filesystem("dios", node=node) for node in ("n1", "n3"))
with near.open("analytics/large") as file:
    file.seek(19_000_000)
    assert file.read(5) == near.cat_file("analytics/large", 19_000_000, 19_000_005) == b"abcde"
near.pipe("analytics/small", b"1")
assert far.cat("analytics/small") == b"1"
far.pipe("analytics/small", b"2")
assert near.cat("analytics/small") == b"2"
near.rm(["analytics/large", "analytics/small"])
assert not far.exists("analytics/small")
"""


def test_files_are_the_same_on_every_node(person: Person) -> None:
    """What one node stores is read, replaced and removed through another; large files are read in ranges."""
    pytest.importorskip("fsspec", reason="fsspec is not installed: make setup")
    person.writes("large", "abcdefghij" * 2_000_000)
    person.types("dios put large --group analytics --node n2")
    done = subprocess.run(
        [sys.executable, "-c", READ_ANYWHERE],
        cwd=person.home,
        env=person.environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_task_runs_where_it_is_told(person: Person) -> None:
    """`run --on` runs there and streams here; `ps` says where each ran, `--here` shows only those here."""
    person.writes("job.py", "import dios\nprint(dios.connect().inputs[0].read_bytes())\n")
    person.writes("c.txt", "input")
    person.types("dios put c.txt --group analytics")
    for place in ("--on n2 --title there", "--here --title here"):
        done = person.types(f"dios run job.py --group analytics --input c.txt {place}")
        assert done.stdout == "b'input'\n"
    everywhere = {
        row["label"]: row["node"] for row in json.loads(person.types("dios ps --all --json").stdout)
    }
    assert everywhere["there"] == "n2"
    assert everywhere["here"] == "n1"
    here = {row["label"] for row in json.loads(person.types("dios ps --all --here --json").stdout)}
    assert "here" in here
    assert "there" not in here
    assert "n9" in person.types("dios run job.py --on n9", status=125).stderr


def test_a_drained_node_is_given_nothing(person: Person) -> None:
    """A draining node is shown as such everywhere, and takes tasks again when it is undone."""
    assert json.loads(person.types("dios node drain n3 --wait --json").stdout)["draining"]
    person.writes("nothing.py", "")
    for _ in range(3):
        person.types("dios run nothing.py --title drained")
    rows = json.loads(person.types("dios ps --all --json").stdout)
    assert "n3" not in {row["node"] for row in rows if row["label"] == "drained"}
    assert not json.loads(person.types("dios node drain n3 --undo --json").stdout)["draining"]


def test_a_drain_ends_at_its_time_limit_and_goes_on(person: Person) -> None:
    """With status 4, the number of tasks that are left, and the next commands."""
    person.writes("long.py", "import time\ntime.sleep(600)")
    task = json.loads(person.types("dios run long.py --on n3 --detach --json").stdout)["fingerprint"]
    left = json.loads(person.types("dios node drain n3 --wait --timeout 1s --json", status=4).stdout)
    assert (left["draining"], left["empty"], left["tasks_left"], left["replicas_left"]) == (True, False, 1, 0)
    late = person.types("dios node drain n3 --wait --timeout 1s", status=4).stderr
    assert "1 task to end or leave" in late
    assert "keeps draining" in late
    person.types(f"dios kill {task}")
    person.types("dios node drain n3 --wait --timeout 1min")
    person.types("dios node drain n3 --undo")


def test_a_killed_node_is_missed_and_comes_back(person: Person) -> None:
    """A dead node is told with what may be missing, nothing waits for it, and `dios up` starts it again."""
    person.writes("d.txt", "kept")
    name = json.loads(person.types("dios put d.txt --group analytics --node n2 --json --names").stdout)[0][
        "name"
    ]
    person.writes("sleeper.py", "import time\nprint('awake', flush=True)\ntime.sleep(600)\n")
    begun = person.starts("dios run sleeper.py --on n2")
    assert begun.stdout is not None
    assert begun.stdout.readline() == "awake\n"
    os.kill(pid_of(person, "n2"), signal.SIGKILL)
    said = begun.communicate(timeout=DEADLINE_SECONDS)[1]
    assert begun.returncode == 137, said
    assert "node was lost" in said
    wait_until(lambda: nodes(person, "n1")["n2"] == "dead", "n1 knows that n2 is dead")
    assert "does not answer" in person.types("dios node describe n2").stderr
    assert "EHOSTUNREACH" in person.types("dios run sleeper.py --on n2", status=125).stderr
    assert "n2 did not answer" in person.types("dios rm d.txt", status=1).stderr
    told = json.loads(person.types("dios up --json").stdout)
    assert [row["name"] for row in told["nodes"] if row["started"]] == ["n2"]
    assert person.types("dios get d.txt").stdout == "kept", "what may be there stays in the catalogue"
    assert person.types("dios get", name, "--node", "n1").stdout == "kept"


def test_the_page_works_as_written(tmp_path: Path) -> None:
    """Every line of the first block of docs/clusters.md succeeds, in order."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "clusters.md").read_text()
    lines = page.partition("```\n")[2].partition("```")[0]
    assert "dios up" in lines
    assert "dios down" in lines
    someone = Person(tmp_path)
    someone.environment["DIOS_POOL_SIZE"] = "1"
    done = someone.pastes(lines)
    if done.returncode:
        someone.types("dios down")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "one fish two fish\n" in done.stdout
    assert "\n18\n" in done.stdout


def test_down_leaves_nothing(tmp_path: Path) -> None:
    """`dios down` leaves no process and keeps the objects for the next `up`; --delete leaves no file."""
    someone = Person(tmp_path)
    up = json.loads(someone.types("dios up --nodes 2 --pool-size 0 --dir ./c --json").stdout)
    pids = [row["pid"] for row in up["nodes"]]
    assert all(exists(pid) for pid in pids)
    someone.types("dios group create g")
    someone.writes("a.txt", "kept")
    someone.types("dios put a.txt --group g --node n2")
    told = json.loads(someone.types("dios down --json").stdout)
    assert (told["stopped"], told["removed"]) == (["n1", "n2"], False)
    assert not any(exists(pid) for pid in pids)
    assert "stored there before" in someone.types("dios up --dir ./c").stderr
    assert someone.types("dios get a.txt").stdout == "kept"
    stopped = someone.types("dios down")
    assert "dios down --delete" in stopped.stderr, "the user sees how to delete what was kept"
    assert str(tmp_path / "c") in stopped.stdout
    assert "deleted" in someone.types("dios down --delete").stdout
    assert not (tmp_path / "c").exists()
    assert "none" in someone.types("dios down --dir ./elsewhere").stdout
    assert not (tmp_path / "elsewhere").exists()


def test_ctrl_c_stops_what_was_started(tmp_path: Path) -> None:
    """`dios up` that is interrupted ends its nodes and removes what it made."""
    someone = Person(tmp_path)
    begun = someone.starts("dios up --nodes 2 --pool-size 0")
    folder = cluster_of(someone)
    pid_files = [folder / name / "node.pid" for name in ("n1", "n2")]

    def written() -> bool:
        return begun.poll() is not None or any(file.exists() and file.read_text() for file in pid_files)

    wait_until(written, "a node's process is there")
    pids = [int(file.read_text()) for file in pid_files if file.exists() and file.read_text()]
    begun.send_signal(signal.SIGINT)
    begun.communicate(timeout=DEADLINE_SECONDS)
    assert begun.returncode == 130
    assert not folder.exists()
    assert not any(exists(pid) for pid in pids)


def test_nodes_join_one_by_one(tmp_path: Path) -> None:
    """The line that `init` prints makes a second data directory a node; later starts need no token."""
    someone = Person(tmp_path)
    port = 30_000 + os.getpid() % 1_900
    init = someone.types(f"dios-node init --data ./one --listen 127.0.0.1:{port} --name one --json")
    token = json.loads(init.stdout)["token"]
    someone.environment["DIOS_POOL_SIZE"] = "0"
    join = f"dios-node start --data ./two --detach --join 127.0.0.1:{port} --name two --rack r2"
    assert "nobody answers" in someone.types(join, "--invitation", token, status=1).stderr
    try:
        someone.types("dios-node start --data ./one --detach")
        assert (
            "named one"
            in someone.types(join.replace("--name two", "--name one"), "--invitation", token, status=1).stderr
        )
        someone.writes("token", token).chmod(0o600)
        someone.types(join, "--invitation-file", "token")
        deadline = time.monotonic() + DEADLINE_SECONDS
        while nodes(someone, "./one") != {"one": "alive", "two": "alive"}:
            assert time.monotonic() < deadline
        third = join.replace("./two", "./three")
        assert "used up" in someone.types(third, "--invitation", token, status=1).stderr
        someone.types("dios-node stop --data ./two")
        someone.types("dios-node start --data ./two --detach")
        wait_until(
            lambda: nodes(someone, "./two") == {"one": "alive", "two": "alive"}, "it found its cluster again"
        )
        someone.types("dios node forget two --yes --node ./one")
        assert nodes(someone, "./one") == {"one": "alive"}
    finally:
        for data in ("./one", "./two"):
            someone.types(f"dios-node stop --data {data}")

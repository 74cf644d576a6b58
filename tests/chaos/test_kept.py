"""The rounds with kept replicas: their verdicts can fail, and so can clocks and disks of real processes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from dios.errors import UnreachableError
from tests.chaos.history import Outcome
from tests.chaos.kept import power
from tests.chaos.kept.client import Note, put_steps
from tests.chaos.kept.cluster import KeptCluster, KeptNode
from tests.chaos.kept.content import ABSENT, content, value_of
from tests.chaos.kept.group import KeptGroup
from tests.chaos.kept.machine import Machinery, NoCompilerError, shim
from tests.chaos.kept.notes import Notes, read_notes
from tests.chaos.kept.plan import Kind, Plan, planned
from tests.chaos.kept.round import Rounds
from tests.chaos.kept.verdict import THE_LIST, Broken, Observation, Replica, Wanted, judge

DONE, FAILED, UNKNOWN = Outcome.DONE, Outcome.FAILED, Outcome.UNKNOWN
NODES = ("n1", "n2", "n3")


# -- verdicts ---------------------------------------------------------------------------------------------
class Story:
    """The notes of one program, call after call."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "1.notes"
        self._moment = 0

    def note(self, call: int, operation: str, values: Mapping[str, int], **more: object) -> None:
        """Add one note."""
        self._moment += 1
        row = Note(call, self._moment, operation, dict(values), **more)  # type: ignore[arg-type]
        with self._file.open("ab") as file:
            file.write(msgspec.json.encode(row) + b"\n")

    def call(
        self,
        operation: str,
        values: Mapping[str, int],
        outcome: Outcome | None,
        objects: Mapping[str, int] = {},
    ) -> None:
        """Add a call with its answer; None for a program that was killed before it."""
        call = self._moment + 1
        self.note(call, operation, values)
        if objects:
            self.note(call, operation, {}, objects=dict(objects))
        if outcome is not None:
            self.note(call, operation, values, outcome=str(outcome))

    def told(self) -> Notes:
        """Return the notes as the verdict gets them."""
        return read_notes([self._file])


@pytest.fixture
def story(tmp_path: Path) -> Story:
    """A program that has put the value 7 to the path a, acknowledged."""
    first_story = Story(tmp_path)
    first_story.call("put", {"a": 7}, DONE, {"of a": 7})
    return first_story


def kinds(story: Story, value: int | str = 7, **seen: object) -> set[Broken]:
    """Return the kinds of findings when every node reads ``value`` from the path a."""
    reads = {node: {"a": value} for node in NODES}
    observed = Observation(**{"reads": reads, **seen})  # type: ignore[arg-type]
    return {finding.kind for finding in judge(story.told(), observed, Wanted(2, 3))}


def test_what_was_acknowledged_and_is_there_is_right(story: Story) -> None:
    """A file that each node lists and reads is no finding."""
    assert kinds(story) == set()


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (ABSENT, Broken.LOST),
        (8, Broken.ORDER),
        ("FileNotFoundError: the object of the file was destroyed", Broken.UNREADABLE),
        ("40 bytes that were never put", Broken.WRONG_BYTES),
        ("no list: UnreachableError", Broken.UNREADABLE),
    ],
)
def test_an_acknowledged_file_that_is_not_there_is_found(
    story: Story, value: int | str, kind: Broken
) -> None:
    """A file that is unlisted, has other bytes or cannot be read is found."""
    assert kinds(story, value) == {kind}


def test_a_node_that_lists_less_than_others_is_found(story: Story) -> None:
    """The file is there for two readers and gone for the third one."""
    reads = {"n1": {"a": 7}, "n2": {"a": 7}, "n3": {"a": ABSENT}}
    assert Broken.LISTS_DIFFER in kinds(story, reads=reads)


@pytest.mark.parametrize("operation", ["remove", "move"])
def test_a_removed_file_that_comes_back_is_found(story: Story, operation: str) -> None:
    """A path that was removed, or whose file was moved away, stays without a file."""
    story.call(operation, {"a": ABSENT}, DONE)
    assert kinds(story, ABSENT) == set()
    assert kinds(story) == {Broken.ORDER}


@pytest.mark.parametrize("outcome", [UNKNOWN, None])
def test_a_call_without_an_answer_may_have_been_made(story: Story, outcome: Outcome | None) -> None:
    """After a replacement without an answer the old file or the new one is right, and nothing else."""
    story.call("put", {"a": 8}, outcome, {"of 8": 8})
    assert kinds(story, 7) == kinds(story, 8) == set()
    assert kinds(story, 9) == {Broken.ORDER}


def test_a_replacement_that_was_read_stays(story: Story) -> None:
    """A reader has seen the new file, whose put had no answer: the old one must not come back."""
    story.call("put", {"a": 8}, UNKNOWN, {"of 8": 8})
    story.call("read", {"a": 8}, DONE)
    assert kinds(story, 8) == set()
    assert kinds(story, 7) == {Broken.ORDER}


def test_a_call_that_failed_was_not_made(story: Story) -> None:
    """A put that was answered with an error that promises so is not there."""
    story.call("put", {"a": 8}, FAILED, {"of 8": 8})
    assert kinds(story, 7) == set()
    assert kinds(story, 8) == {Broken.ORDER}


@pytest.mark.parametrize(
    ("replicas", "kind"),
    [
        ([Replica("n1", 1, same=True), Replica("n2", 1, same=True)], None),
        ([Replica("n1", 1, same=True)], Broken.REPLICAS),
        ([Replica("n1", 1, same=True)] * 2, Broken.REPLICAS),
        ([Replica(node, 1, same=True) for node in NODES], Broken.REPLICAS),
        ([Replica("n1", 1, same=True), Replica("n2", 2, same=False)], Broken.WRONG_BYTES),
    ],
)
def test_replicas_are_counted_exactly(story: Story, replicas: list[Replica], kind: Broken | None) -> None:
    """Two of two, on different nodes, with the same bytes."""
    assert kinds(story, replicas={"a": replicas}) == ({kind} if kind else set())


def test_lists_with_other_bytes_are_found(story: Story) -> None:
    """The replicas of the list must be equal."""
    different = [Replica(node, 3, same=node != "n2") for node in NODES]
    assert kinds(story, replicas={THE_LIST: different}) == {Broken.LISTS_DIFFER}


def test_a_conflict_and_a_broken_promise_are_found(story: Story) -> None:
    """The keeper's own words count."""
    assert kinds(story, conflicts=1) == {Broken.CONFLICT}
    assert kinds(story, kept=False) == {Broken.NOT_KEPT}


def test_objects_of_acknowledged_files_are_not_left_over(story: Story) -> None:
    """An object that was replaced or removed must go; one of a put that failed may stay."""
    story.call("put", {"b": 8}, FAILED, {"of b": 8})
    assert kinds(story, orphans={"n1": ["of b"]}) == set()
    assert kinds(story, orphans={"n1": ["of a"]}) == {Broken.LEFT_OVER}


def test_objects_that_nobody_knows_are_those_of_unfinished_calls(story: Story) -> None:
    """A program that was killed while it stored a file leaves at most the object of that file."""
    assert kinds(story, orphans={"n1": ["x"]}) == {Broken.LEFT_OVER}
    story.call("put", {"b": 8}, None)
    assert kinds(story, orphans={"n1": ["x"], "n2": ["x"]}) == set()
    assert kinds(story, orphans={"n1": ["x", "y"]}) == {Broken.LEFT_OVER}


@pytest.mark.parametrize("operation", ["read", "tier in"])
def test_a_file_that_was_being_brought_back_may_leave_its_object(story: Story, operation: str) -> None:
    """If the answer of the list was lost, it may be listed, so nobody destroys it."""
    story.call(operation, {}, Outcome.UNKNOWN)
    assert kinds(story, orphans={"n1": ["x"]}) == set()
    assert kinds(story, orphans={"n1": ["x", "y"]}) == {Broken.LEFT_OVER}


def test_an_unexpected_error_is_found(story: Story) -> None:
    """An error that no documentation promises is a finding of its own."""
    story.note(100, "read", {})
    story.note(100, "read", {}, outcome=str(UNKNOWN), why="unexpected read: ValueError: x")
    assert kinds(story) == {Broken.UNEXPECTED}


def test_a_note_that_a_kill_cut_off_is_no_note(story: Story, tmp_path: Path) -> None:
    """The last line of a killed program may be a part of one."""
    with (tmp_path / "1.notes").open("ab") as file:
        file.write(b'[9,9,"put",{"a"')
    assert kinds(story) == set()


def test_bytes_follow_from_their_value() -> None:
    """Other bytes have no value."""
    for value in range(1, 30):
        assert value_of(content(value)) == value
        assert value_of(content(value)[:-1] + b"!") is None
    assert value_of(b"") is None


# -- plans ------------------------------------------------------------------------------------------------
def test_a_seed_repeats_its_plan() -> None:
    """The plan follows from the seed and the numbers of nodes and programs."""
    assert planned(5, nodes=3, programs=4) == planned(5, nodes=3, programs=4)
    assert planned(5, nodes=3, programs=4) != planned(6, nodes=3, programs=4)


@pytest.mark.parametrize("nodes", [2, 3, 5])
def test_plans_have_all_faults_and_lose_fewer_disks_than_there_are_replicas(nodes: int) -> None:
    """A loss of every disk that has a file would be no finding."""
    seen: set[Kind] = set()
    for seed in range(200):
        plan = planned(seed, nodes=nodes, programs=4)
        seen.update(fault.kind for fault in plan.faults)
        assert sum(fault.kind is Kind.LOSE for fault in plan.faults) < plan.replicas <= nodes
    assert seen == set(Kind)


def test_kinds_that_are_not_possible_here_are_left_out() -> None:
    """Without root there are no partitions, and without a compiler no false clocks."""
    for seed in range(50):
        plan = planned(seed, nodes=3, programs=4, can_cut=False, has_machinery=False)
        assert not {fault.kind for fault in plan.faults} & {Kind.CUT, Kind.CLOCK, Kind.STALL, Kind.POWER}
    assert not planned(1, nodes=3, programs=4, only=()).faults


# -- clocks and disks -------------------------------------------------------------------------------------
@pytest.fixture
def machinery(tmp_path: Path) -> Machinery:
    """A machine with a false clock and disk."""
    try:
        shim()
    except NoCompilerError as error:
        pytest.skip(str(error))
    (tmp_path / "data").mkdir()
    return Machinery(tmp_path / "machine", tmp_path / "data")


def python(machinery: Machinery, program: str) -> str:
    """Run a program on a machine until it ends, by itself or by SIGKILL; return its output."""
    environment = {**os.environ, **machinery.environment()}
    words = [sys.executable, "-c", f"import os, signal, time\n{program}", str(machinery.data)]
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=False).stdout


def test_a_clock_is_wrong_and_intervals_are_right(machinery: Machinery) -> None:
    """The clock of the day is an hour ahead; the other clocks are those of the machine."""
    machinery.set(clock_offset_ns=3600 * 10**9)
    shown = python(machinery, "print(time.time(), time.clock_gettime(1))").split()
    assert float(shown[0]) - time.time() == pytest.approx(3600, abs=60)
    assert float(shown[1]) - time.clock_gettime(time.CLOCK_MONOTONIC) == pytest.approx(0, abs=60)


def test_a_strobing_clock_goes_forward_and_back(machinery: Machinery) -> None:
    """Neighbouring readings differ by the amount, in both directions."""
    machinery.set(strobe_ns=1000 * 10**9, strobe_period_ns=10**6)
    program = "t = [time.time() for _ in range(200_000)]\nprint(len({round(x / 500) for x in t}))"
    assert int(python(machinery, program)) > 1


def test_a_stalled_disk_lets_a_sync_wait(machinery: Machinery) -> None:
    """A sync does not return while the disk is stalled, and returns afterwards."""
    machinery.set(stalled=1)
    program = (
        "import sys; fd = os.open(sys.argv[1] + '/f', os.O_CREAT | os.O_RDWR)\n"
        "print('before', flush=True); os.fsync(fd); print('after', flush=True)"
    )
    words = [sys.executable, "-c", f"import os\n{program}", str(machinery.data)]
    environment = {**os.environ, **machinery.environment()}
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "before\n"
        os.set_blocking(process.stdout.fileno(), False)
        assert process.stdout.readline() == ""
        os.set_blocking(process.stdout.fileno(), True)
        machinery.heal()
        assert process.stdout.readline() == "after\n"


WRITES = """
import sys
folder = sys.argv[1]
def sync(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
def write(name, data):
    with open(f"{folder}/{name}", "wb", buffering=0) as file:
        file.write(data)
"""
SEEDS = 8
KILL = "\nos.kill(os.getpid(), signal.SIGKILL)"


def left(machinery: Machinery, program: str) -> list[dict[str, bytes]]:
    """Return what several power cuts after the same program leave of the disk."""
    outcomes = []
    for seed in range(SEEDS):
        for entry in machinery.data.iterdir():
            entry.unlink()
        power.clear(machinery.journal)
        machinery.set(journal=1)
        python(machinery, WRITES + program + KILL)
        power.cut_power(machinery.journal, random.Random(seed))  # noqa: S311 - it chooses pages
        outcomes.append({entry.name: entry.read_bytes() for entry in machinery.data.iterdir()})
    return outcomes


def test_a_power_cut_keeps_what_was_synced(machinery: Machinery) -> None:
    """A file that was synced with its folder is there, whatever the seed."""
    program = "write('f', b'one' * 5000); sync(folder + '/f'); sync(folder)"
    assert left(machinery, program) == [{"f": b"one" * 5000}] * SEEDS


def test_a_power_cut_loses_pages_that_were_not_synced(machinery: Machinery) -> None:
    """After a sync a file is written again, and longer: its former bytes come back, or pages of both."""
    program = (
        "write('f', b'1' * 9000); sync(folder + '/f'); sync(folder)\n"
        "fd = os.open(folder + '/f', os.O_WRONLY); os.pwrite(fd, b'2' * 20_000, 0)"
    )
    outcomes = [files["f"] for files in left(machinery, program)]
    assert b"1" * 9000 in outcomes
    assert any(b"1" in survivor and b"2" in survivor for survivor in outcomes)


def test_a_power_cut_loses_files_whose_folder_was_not_synced(machinery: Machinery) -> None:
    """A sync of the file alone does not keep its name."""
    outcomes = [files.get("f") for files in left(machinery, "write('f', b'x'); sync(folder + '/f')")]
    assert set(outcomes) == {None, b"x"}


def test_a_power_cut_reverts_renamings_and_removals_in_order(machinery: Machinery) -> None:
    """A replacement by renaming is reverted as a whole, and after later changes."""
    program = (
        "write('f', b'old'); write('g', b'new'); write('h', b'gone')\n"
        "for name in 'fgh': sync(f'{folder}/{name}')\n"
        "sync(folder); os.replace(folder + '/g', folder + '/f'); os.unlink(folder + '/h')"
    )
    outcomes = left(machinery, program)
    former = {"f": b"old", "g": b"new", "h": b"gone"}
    assert former in outcomes
    assert {"f": b"new"} in outcomes
    assert all(files in [former, {"f": b"new"}, {"f": b"new", "h": b"gone"}] for files in outcomes)


def test_what_lmdb_acknowledged_survives_a_power_cut(machinery: Machinery) -> None:
    """A database with syncs keeps every acknowledged transaction; without syncs this test finds the loss."""

    def last(options: str) -> tuple[int, int]:
        machinery.set(journal=1)
        program = (
            f"import lmdb\nenv = lmdb.open(folder + '/db', map_size=1 << 24{options})\n"
            "sync(folder + '/db')\n"
            "for n in range(60):\n"
            "    with env.begin(write=True) as txn: txn.put(b'n', b'%d' % n + bytes(3000))\n"
            f"    print(n, flush=True)\n{KILL}"
        )
        acknowledged = int(python(machinery, WRITES + program).split()[-1])
        power.cut_power(machinery.journal, random.Random(3))  # noqa: S311 - it chooses pages
        machinery.set(journal=0)
        shown = python(
            machinery,
            "import lmdb, sys\nenv = lmdb.open(sys.argv[1] + '/db')\n"
            "with env.begin() as txn: print(int((txn.get(b'n') or b'-1').rstrip(bytes(1))))",
        )
        for entry in (machinery.data / "db").iterdir():
            entry.unlink()
        (machinery.data / "db").rmdir()
        return acknowledged, int(shown or -1)

    acknowledged, recovered = last("")
    assert recovered == acknowledged
    acknowledged, recovered = last(", sync=False")
    assert recovered < acknowledged


# -- real nodes -------------------------------------------------------------------------------------------
@pytest.mark.timeout(300)
@pytest.mark.extended
def test_a_loss_behind_the_programs_back_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real programs put files into a group of real nodes; one is unlisted, and one destroyed, by nobody."""
    lives: list[str] = []

    def harmful(self: KeptGroup, socket: Path, seen: Observation) -> None:
        with self.files(socket) as files:
            tree = files.tree()
            unlisted, destroyed = [path for path, entry in tree.files.items() if not entry.tiered][:2]
            for replica in files.node.lookup(tree.files[destroyed].name, group=files.group):
                replica.destroy()
            files.forget([tree.files[unlisted]])
            lives.extend((unlisted, destroyed))
        seen.kept = True

    isolate(tmp_path, monkeypatch)
    monkeypatch.setattr(KeptGroup, "wait_kept", harmful)
    with KeptCluster(tmp_path / "nodes", 2) as cluster:
        result = Rounds(cluster, tmp_path / "rounds").play(Plan(1, 2, tiers=False, faults=()), "r", 2)
    losses = {(finding.kind, finding.text.split()[0]) for finding in result.findings}
    assert {(Broken.LOST, lives[0]), (Broken.UNREADABLE, lives[1])} <= losses


def isolate(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the keyring of the user alone."""
    for name in ("HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(folder))
    monkeypatch.setenv("DIOS_COORDINATOR", "off")


def put(group: KeptGroup, node: KeptNode, path: str, value: int) -> None:
    """Put a file, acknowledged as promised, through one node."""
    with group.files(node.socket) as files:
        for _ in put_steps(files, {path: value}, lambda _: None):
            pass


@pytest.mark.timeout(300)
@pytest.mark.extended
def test_a_node_that_starts_alone_does_not_decide_about_a_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was away while a file was put, and has not met the other nodes since its start."""
    isolate(tmp_path, monkeypatch)
    with KeptCluster(tmp_path / "nodes", 3) as cluster:
        first, second, third = cluster.nodes
        group = KeptGroup("g", 2, 3)
        group.create(first.socket)
        put(group, first, "early", 1)
        cluster.end(first)
        put(group, second, "late", 2)
        cluster.end(second)
        cluster.end(third)
        cluster.begin(first)
        cluster.wait_serves(first)
        with pytest.raises(UnreachableError):
            put(group, first, "alone", 3)
        with pytest.raises(UnreachableError), group.files(first.socket) as files:
            files.tree()
        cluster.wait_whole()
        for node in cluster.nodes:
            values = group.read_all(node.socket, {"early", "late", "alone"})
            assert values == {"early": 1, "late": 2, "alone": ABSENT}

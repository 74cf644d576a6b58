"""Every option of `dios run` has an effect, or is refused with a reason."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import pytest
import typer
from msgspec.structs import replace

import dios
from dios.cli.tasks.run import app
from dios.cli.tasks.work_options import NeedsOptions
from dios.firmament.coordinator.translate import described_job, described_task
from dios.firmament.descriptors import Interference, JobDescriptor, Kind, TaskDescriptor
from dios.wire.messages import Near, Submission
from dios.wire.types import Affinity
from tests.support.node.command_user import Person
from tests.support.node.running_node import wait_until
from tests.support.wheels import make_wheel

pytestmark = [pytest.mark.timeout(300), pytest.mark.long]

MIB: Final = 1 << 20
REFUSED: Final = 125
TYPERS_OWN: Final = {"--help", "--install-completion", "--show-completion"}


class Stand:
    """A person with a cluster of one node that has a coordinator."""

    def __init__(self, person: Person) -> None:
        self.person = person

    def runs(self, options: str, status: int = 0) -> dict[str, object]:
        """The JSON about a short task with these options."""
        told: dict[str, object] = json.loads(
            self.person.types(f"dios run {options} short.py --json", status=status).stdout
        )
        return told

    def describes(self, options: str, program: str = "short.py") -> dict[str, object]:
        """What `dios describe` says about a task with these options."""
        done = self.person.types(f"dios run {options} --detach --json {program}")
        task = json.loads(done.stdout)["fingerprint"]
        told: dict[str, object] = json.loads(self.person.types(f"dios describe {task} --json").stdout)
        return told

    def refuses(self, options: str, why: str) -> None:
        """The run is refused with this reason."""
        assert why in self.person.types(f"dios run {options}", status=REFUSED).stderr

    def explains(self, task: str) -> str:
        """What `dios explain` says about a task; nothing while no such task is known."""
        try:
            return self.person.types(f"dios explain {task}").stdout
        except AssertionError:
            return ""

    def reserved(self, options: str) -> dict[str, object]:
        """The row of the node in `dios sched status` while a long task with these options runs."""
        task = self.describes(options, "long.py")["fingerprint"]
        try:
            (row,) = self.status()
            return row
        finally:
            self.person.types(f"dios kill {task}")
            wait_until(lambda: self.status()[0]["cpus_set_aside"] == 0, "nothing is reserved any more", 60)

    def status(self) -> list[dict[str, object]]:
        """The rows of `dios sched status`."""
        told: list[dict[str, object]] = json.loads(self.person.types("dios sched status --json").stdout)[
            "nodes"
        ]
        return told


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """The cluster, once it schedules."""
    person = Person(tmp_path_factory.mktemp("home"))
    del person.environment["DIOS_COORDINATOR"]
    person.environment["DIOS_DEVICES"] = "seat=2 file=/dev/null"
    # A node that measures its disk and its link soon knows what they carry.
    person.environment["DIOS_MEASURE"] = "no"
    person.writes("short.py", "print('ran')\n")
    person.writes("long.py", "import time\ntime.sleep(600)\n")
    person.writes("output.py", "open('/outputs/out', 'w').write('made')\n")
    person.writes("a.txt", "bytes")
    person.types("dios up --nodes 1 --pool-size 1")
    try:
        person.types("dios group create analytics")
        person.types("dios put a.txt --group analytics")
        live_stand = Stand(person)
        wait_until(lambda: _answers(person), "the coordinator answers", 120)
        yield live_stand
    finally:
        person.types("dios down")


def _answers(person: Person) -> bool:
    try:
        return '"n1"' in person.types("dios sched status --json").stdout
    except AssertionError:
        return False


def _group(stand: Stand) -> None:
    assert stand.describes("--group analytics")["groups"] != stand.describes("")["groups"]
    stand.refuses("short.py --group nobody", "nobody")


def _input(stand: Stand) -> None:
    given = stand.describes("--group analytics --input text=a.txt")["inputs"]
    assert isinstance(given, list)
    assert [row["label"] for row in given] == ["text"]


def _output(stand: Stand) -> None:
    stand.person.types("dios run --group analytics --output out=made.txt output.py")
    assert "made.txt" in stand.person.types("dios ls analytics").stdout
    stand.refuses("output.py --group analytics --output out=made.txt --detach", "--output needs this command")


def _limbo(stand: Stand) -> None:
    assert (stand.runs("")["brand"], stand.runs("--limbo")["brand"]) == ("pure", "limbo")


def _detach(stand: Stand) -> None:
    assert "state" not in stand.runs("--detach")


def _label(stand: Stand) -> None:
    assert stand.runs("--title mine")["label"] == "mine"


def _memory(stand: Stand) -> None:
    assert stand.describes("--memory 128MiB")["memory_limit_bytes"] == 128 * MIB
    stand.refuses("short.py --memory 1KiB", "--memory must be from")


def _cpu_seconds(stand: Stand) -> None:
    assert stand.describes("--cpu-seconds 3")["cpu_limit_ms"] == 3000


def _limit(stand: Stand) -> None:
    assert stand.describes("--limit tasks=7")["usage"] != stand.describes("")["usage"]
    stand.refuses("short.py --limit wishes=3", "wishes")


def _host(stand: Stand) -> None:
    assert stand.runs("--on n1")["node"] == "n1"
    stand.refuses("short.py --on n7", "n7")


def _local(stand: Stand) -> None:
    assert stand.runs("--here")["node"] == "n1"
    stand.refuses("short.py --here --on n1", "only one of --on and --here")
    stand.refuses("short.py --here --constraint node=n1", "need the scheduler")


def _template(stand: Stand) -> None:
    stand.refuses("short.py --template numbers", "no template 'numbers'")


def _packages(stand: Stand) -> None:
    make_wheel(stand.person.home / "wheels", "fruit", "1.0", {"fruit.py": "print('a fruit')\n"})
    (stand.person.home / "eats.py").write_text("import fruit\n", encoding="utf-8")
    told = stand.person.types("dios run eats.py --packages fruit==1.0 --wheels ./wheels")
    assert told.stdout == "a fruit\n"
    stand.refuses("short.py --packages fruit --wheels ./wheels --limbo", "leave out --limbo")
    stand.refuses(
        "short.py --packages fruit --wheels ./wheels --template t", "leave out template or packages"
    )


def _wheels(stand: Stand) -> None:
    stand.refuses("short.py --wheels ./wheels", "add --packages")
    stand.refuses("short.py --packages fruit --wheels ./nowhere", "it is no folder")


def _program(stand: Stand) -> None:
    told = stand.person.types("dios run --program sort", status=1)
    assert "this node has no program of that name" in told.stdout + told.stderr


def _node(stand: Stand) -> None:
    stand.refuses("short.py --node nowhere", "nowhere")


def _json(stand: Stand) -> None:
    assert stand.runs("")["exit_status"] == 0
    assert stand.person.types("dios run short.py").stdout == "ran\n"


def _secrecy(stand: Stand) -> None:
    stand.refuses("short.py --secrecy payroll", "add --output")
    stand.person.types("dios run output.py -g analytics --output out=secret.txt --secrecy payroll")
    told = stand.person.types("dios stat analytics/secret.txt --json").stdout
    assert [tag.partition("/")[2] for tag in json.loads(told)["secrecy"]] == ["payroll"]


def _may_declassify(stand: Stand) -> None:
    stand.person.writes("passes.py", "open('/outputs/out', 'w').write(open('/inputs/in').read())\n")
    stand.person.types("dios put a.txt -g analytics --as labelled.txt --secrecy payroll")
    run = "dios run passes.py -g analytics --input in=labelled.txt --output out=open.txt"
    stand.person.types(run, status=1)
    stand.person.types(f"{run} --may-declassify payroll")
    assert json.loads(stand.person.types("dios stat analytics/open.txt --json").stdout)["secrecy"] == []


def _cpus(stand: Stand) -> None:
    assert stand.reserved("--cpus 0.5")["cpus_set_aside"] == 0.5
    stand.refuses("short.py --on n1 --cpus 4096", "4096 processors would be reserved")
    assert {*stand.runs("--cpus 0.5")} >= {"enforced", "advisory"}


def _reserve_memory(stand: Stand) -> None:
    assert stand.reserved("--reserve-memory 96MiB")["memory_set_aside"] == 96 * MIB
    assert stand.describes("--reserve-memory 96MiB")["memory_limit_bytes"] == 96 * MIB
    stand.refuses("short.py --on n1 --reserve-memory 900000GiB", "would be reserved")


def _disk_io(stand: Stand) -> None:
    told = stand.person.types("dios run short.py --disk-io 1MiB").stderr
    assert "disk-io" in told
    assert "--disk-io sets nothing aside on n1: the capacity is unknown" in told
    assert _demand("disk_io", disk_io="1MiB") == MIB


def _net(stand: Stand) -> None:
    told = stand.person.types("dios run short.py --net 1MiB").stderr
    assert "enforced: net" in told
    assert "--net sets nothing aside on n1: the capacity is unknown" in told
    assert "advisory: net" in stand.person.types("dios run short.py --net 1MiB --limbo").stderr
    assert _demand("network", net="1MiB") == MIB


def _gang(stand: Stand) -> None:
    told = json.loads(stand.person.types("dios run short.py --gang 2/2 --cpus 0.5 --json").stdout)
    assert all("cpu" in (*row["enforced"], *row["advisory"]) for row in told)
    assert [row["exit_status"] for row in told] == [0, 0]
    stand.refuses("short.py --gang 3/2", "--gang must be K/N")


def _job_name(stand: Stand) -> None:
    work = _submission(series="train").work
    assert work.job == dios.work(job="train").job != 0
    assert _submission().work.job == 0
    stand.refuses("short.py --series train --gang 2/2", "leave out --series")


def _job_maximum(stand: Stand) -> None:
    task = stand.describes("--series alone --series-maximum 1", "long.py")["fingerprint"]
    waits = stand.person.starts("dios run short.py --series alone --series-maximum 1 --title second")
    why = "its series runs as many tasks as it may at once: 1 of 1"
    wait_until(lambda: why in stand.explains("second"), "the reason is the maximum", 60)
    stand.person.types(f"dios kill {task}")
    assert waits.communicate(timeout=60)[0] == "ran\n"
    stand.refuses("short.py --series-maximum 2", "name it with --series")
    stand.refuses(
        "short.py --series a --series-minimum 3 --series-maximum 2", "at most 2 tasks and at least 3"
    )
    stand.refuses("short.py --series a --series-maximum 2 --on n1", "need the scheduler")
    stand.refuses("short.py --gang 3/4 --series-maximum 2", "at most 2 tasks and at least 3")


def _job_minimum(stand: Stand) -> None:
    assert _submission(series="train", series_minimum=2).work.job_minimum == 2
    stand.refuses("short.py --series-minimum 2", "name it with --series")
    stand.refuses("short.py --series a --series-minimum 1 --best-effort", "best effort excludes a minimum")


def _constraint(stand: Stand) -> None:
    assert stand.runs("--constraint node=n1")["node"] == "n1"
    (constraint,) = _task(constraint=["?ssd"]).constraints
    assert (constraint.key, constraint.hard) == ("ssd", False)


def _restartable(stand: Stand) -> None:
    stand.refuses("short.py --restartable --detach", "--restartable needs this command")
    assert _task(restartable=True).restartable
    assert not _task().restartable


def _grace(stand: Stand) -> None:
    stand.person.writes("kept.py", "import dios\nprint([one.label for one in dios.connect().outputs])\n")
    assert stand.person.types("dios run kept.py --grace 2s").stdout == "['dios.checkpoint']\n"
    assert stand.person.types("dios run kept.py").stdout == "[]\n"
    stand.refuses("short.py --grace 10min", "grace is from 0 to 300 seconds")
    stand.refuses("short.py --grace 2s --detach", "needs this command")


def _keep(stand: Stand) -> None:
    stand.refuses("short.py --keep --here --limbo", "leave out --limbo, --here")
    assert stand.person.types("dios run --keep short.py").stdout == "ran\n"
    stand.person.types("dios job rm short")


def _attempts(stand: Stand) -> None:
    stand.refuses("short.py --attempts 2", "add --keep")
    told = json.loads(stand.person.types("dios run --keep --attempts 7 short.py --json").stdout)
    assert (told["attempt"], told["attempts"], told["exit_status"]) == (1, 7, 0)
    stand.person.types("dios job rm short")


def _array(stand: Stand) -> None:
    stand.person.writes("index.py", "import sys\nprint(sys.argv[1:])\n")
    told = json.loads(stand.person.types("dios run index.py --array 2,4 --json -- first").stdout)
    assert (told["array"], told["exit_status"]) == ("2,4", 0)
    assert stand.person.types("dios logs index.4").stdout == "['first', '4']\n"
    assert '"array"' in stand.person.types("dios job describe index --json").stdout
    stand.person.types("dios job rm index")
    stand.refuses("short.py --array 4-2", "the range '4-2' is empty")
    stand.refuses("short.py --array 1-2 --gang 2/2", "leave out --gang")


def _after(stand: Stand) -> None:
    task = stand.describes("--title first", "long.py")["fingerprint"]
    assert stand.person.types("dios run short.py --after first").stdout == "ran\n"
    stand.person.types(f"dios kill {task}")
    stand.refuses("short.py --after nothing", "there is no run 'nothing'")
    stand.refuses("short.py --after first --detach", "add --keep")


def _after_ok(stand: Stand) -> None:
    stand.runs("--title good")
    stand.person.types("dios run long.py --title bad --time 1s", status=124)
    assert stand.person.types("dios run short.py --after-ok good").stdout == "ran\n"
    stand.refuses("short.py --after-ok good --after-ok bad", "ended with 124 (time), and --after-ok needs")


def _after_any(stand: Stand) -> None:
    task = stand.describes("--title long", "long.py")["fingerprint"]
    waits = stand.person.starts("dios run short.py --after-any long")
    assert waits.stderr is not None
    assert "waits for the end of long" in waits.stderr.readline()
    stand.person.types(f"dios kill {task}")
    assert waits.communicate(timeout=60)[0] == "ran\n"


def _pin(stand: Stand) -> None:
    stand.person.writes("where.py", "import os\nprint(len(os.sched_getaffinity(0)))\n")
    assert stand.person.types("dios run where.py --cpus 1 --pin").stdout == "1\n"
    stand.refuses("short.py --cpus 0.5 --pin", "whole processors")
    stand.refuses("short.py --pin", "whole processors")


def _best_effort(stand: Stand) -> None:
    assert stand.reserved("--best-effort --cpus 0.1")["cpus_set_aside"] == 0
    stand.refuses("short.py --best-effort --cpus 1 --pin", "best effort excludes pin")


def _device(stand: Stand) -> None:
    stand.person.writes("devices.py", "import os\nprint(os.environ['DIOS_TASK_DEVICES'])\n")
    assert stand.person.types("dios run devices.py --device seat=2").stdout == "seat=0,1\n"
    assert stand.person.types("dios run devices.py").stdout == "\n"
    taken = stand.reserved("--device seat=1 --cpus 0.1")["devices"]
    assert taken == {"file": {"count": 1, "taken": []}, "seat": {"count": 2, "taken": ["0"]}}
    stand.refuses("short.py --on n1 --device seat=3", "n1 has 2 devices of the kind seat; with this task 3")
    stand.refuses("short.py --device file=1", "Run the task with --limbo")
    assert stand.person.types("dios run devices.py --limbo --device file").stdout == "file=0\n"
    stand.refuses("short.py --device seat=some", "--device must be KIND=N")
    stand.refuses("short.py --best-effort --device seat", "best effort excludes")


def _priority(stand: Stand) -> None:
    del stand
    assert _task(priority=7).priority == 7


def _deadline(stand: Stand) -> None:
    assert _task(deadline="90s").deadline == 90
    assert _warns(stand, "--deadline 90s")
    assert not _warns(stand, "")
    stand.refuses("short.py --deadline soon", "--deadline")


def _time(stand: Stand) -> None:
    assert _task(time="90s").expected_runtime == 90
    assert _task().expected_runtime is None
    told = stand.person.types("dios run long.py --time 1s", status=124).stderr
    assert "long.py" in told
    assert "over its time: it ran for 1 s" in told
    assert "over its time" in stand.person.types("dios ps --all").stdout
    assert "over its time: it ran for 1 s" in stand.person.types("dios logs long.py").stderr
    described = json.loads(stand.person.types("dios describe long.py --json").stdout)
    assert (described["cause"], described["time_limit_ms"]) == ("time", 1000)
    gang = stand.person.types("dios run long.py --time 1s --gang 2/2 --json", status=124).stdout
    assert [row["cause"] for row in json.loads(gang)] == ["time", "time"]
    stand.refuses("short.py --time soon", "--time must be a span")


def _may_wait(stand: Stand) -> None:
    # What it does for a job over time is tested in tests/integration/firmament/test_live_packing.py.
    stand.refuses("short.py --may-wait 1h", "--may-wait is for jobs over time")


def _class(stand: Stand) -> None:
    assert _task(interference="devil").interference is Interference.DEVIL
    assert _warns(stand, "--class devil")
    stand.refuses("short.py --class wolf", "wolf")


def _near(stand: Stand) -> None:
    work = replace(_submission().work, near=(Near("n1", 5),))
    (block,) = described_task(replace(_submission(), work=work), {"n1": 1}, 0.0).blocks
    assert (block.size, block.machines) == (5, (1,))
    stand.refuses("short.py --group analytics --near lost.txt", "lost.txt")


def _affinity(stand: Stand) -> None:
    assert _job(affinity="same-rack").affinity is Affinity.SAME_RACK
    stand.refuses("short.py --affinity apart", "apart")


def _service(stand: Stand) -> None:
    assert _warns(stand, "--long-running")
    assert (_job(long_running=True).kind, _job().kind) == (Kind.SERVICE, Kind.BATCH)


def _warns(stand: Stand, options: str) -> bool:
    """The run says that an option has no effect under the present cost model.

    The effects under others are in ``firmament/test_live_cluster`` and ``test_live_capacity``.
    """
    told = stand.person.types(f"dios run short.py {options}").stderr
    return f"{options.split(' ', maxsplit=1)[0]} changes nothing under the cost model spread" in told


def _copy_of(stand: Stand) -> None:
    task = stand.describes("--title slow", "long.py")["fingerprint"]
    stand.person.types("dios sched set-model late")
    try:
        copy = stand.person.starts("dios run short.py --copy-of slow --title copied")
        why = f"it is a copy of task {task}"
        wait_until(lambda: why in stand.explains("copied"), "it is a copy, and waits for another node", 60)
        stand.person.types(f"dios kill {task}")
        assert copy.communicate(timeout=60)[0] == "ran\n"
    finally:
        stand.person.types("dios sched reset")
    stand.refuses("short.py --copy-of slow", "it has ended")
    stand.refuses("short.py --copy-of nothing", "nothing")
    stand.refuses("short.py --copy-of slow --gang 2/2", "a copy is one task")


def _submission(**said: object) -> Submission:
    """A run with these options as the scheduler reads it."""
    work = NeedsOptions(**said).work_of("job", [])
    return Submission(1, "f", "job", "uid:1", 0, work, "n1")


def _task(**said: object) -> TaskDescriptor:
    return described_task(_submission(**said), {"n1": 1}, 0.0)


def _job(**said: object) -> JobDescriptor:
    return described_job(_submission(**said), 1)


def _demand(resource: str, **said: object) -> object:
    return getattr(_task(**said).demand, resource)


Case: TypeAlias = Callable[[Stand], None]
CASES: Final[dict[str, Case]] = {
    "--group": _group,
    "--input": _input,
    "--output": _output,
    "--limbo": _limbo,
    "--detach": _detach,
    "--keep": _keep,
    "--attempts": _attempts,
    "--array": _array,
    "--after": _after,
    "--after-ok": _after_ok,
    "--after-any": _after_any,
    "--title": _label,
    "--memory": _memory,
    "--cpu-seconds": _cpu_seconds,
    "--limit": _limit,
    "--on": _host,
    "--here": _local,
    "--template": _template,
    "--packages": _packages,
    "--wheels": _wheels,
    "--program": _program,
    "--node": _node,
    "--json": _json,
    "--cpus": _cpus,
    "--reserve-memory": _reserve_memory,
    "--secrecy": _secrecy,
    "--may-declassify": _may_declassify,
    "--disk-io": _disk_io,
    "--net": _net,
    "--priority": _priority,
    "--deadline": _deadline,
    "--may-wait": _may_wait,
    "--time": _time,
    "--class": _class,
    "--gang": _gang,
    "--series": _job_name,
    "--series-minimum": _job_minimum,
    "--series-maximum": _job_maximum,
    "--near": _near,
    "--constraint": _constraint,
    "--affinity": _affinity,
    "--long-running": _service,
    "--restartable": _restartable,
    "--grace": _grace,
    "--pin": _pin,
    "--device": _device,
    "--best-effort": _best_effort,
    "--copy-of": _copy_of,
}


def _options() -> list[str]:
    """The long names of all options of `dios run`, from the command itself."""
    options = [option for option in typer.main.get_command(app).params if option.param_type_name == "option"]
    names = [next(name for name in option.opts if name.startswith("--")) for option in options]
    return [name for name in names if name not in TYPERS_OWN]


def test_every_option_has_a_case() -> None:
    """A new option needs a case here; a case without an option has to go."""
    assert sorted(_options()) == sorted(CASES)


@pytest.mark.extended(keep=12)
@pytest.mark.parametrize("option", CASES)
def test_an_option_has_its_effect_or_is_refused(stand: Stand, option: str) -> None:
    """The option changes what the run is, or the run is refused with the reason."""
    CASES[option](stand)

"""Environments on a running node: packages that a program chooses, for its own tasks."""

from __future__ import annotations

import concurrent.futures
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dios
import dios.aio
from dios.errors import InvalidError, NotSupportedError
from dios.lib.environments import archives, environments
from dios.node import local_cluster
from dios.wire.environments import name_for
from tests.support.node.command_user import Person
from tests.support.node.confinement import gvisor_or_skip, mechanisms_or_skip
from tests.support.node.running_node import RunningNode, running_node, wait_until
from tests.support.wheels import make_wheel

pytestmark = pytest.mark.long

PROGRAM = "import fruit\nprint(fruit.VERSION)\n"


@pytest.fixture(scope="module", autouse=True)
def _mechanisms() -> None:
    """Skip on a machine that cannot confine a task."""
    mechanisms_or_skip()


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two versions of a package that needs another one."""
    folder = tmp_path_factory.mktemp("wheels")
    for version in ("1.0", "2.0"):
        text = f"import seed\nVERSION = {version!r}\n"
        make_wheel(folder, "fruit", version, {"fruit/__init__.py": text}, requires=["seed"])
    make_wheel(folder, "seed", "0.1", {"seed.py": ""})
    return folder


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """One node for most tests of this module."""
    with running_node(tmp_path_factory.mktemp("node") / "data") as running:
        yield running


def version_of_fruit() -> str:
    """Return the version that this worker imports."""
    import fruit  # type: ignore[import-not-found]

    return str(fruit.VERSION)


def attempts_to_change() -> list[str]:
    """Return the errors of changing the environment."""
    import fruit

    errors = []
    for path in (fruit.__file__, "/environment/new.py"):
        try:
            Path(path).write_text("", encoding="utf-8")
        except OSError as error:
            errors.append(type(error).__name__)
    return errors


def test_two_jobs_have_two_versions_of_a_package_at_once(node: RunningNode, wheels: Path) -> None:
    """Each worker imports its own, with what that needs; a worker without packages has neither."""
    with (
        dios.Executor(1, node=node.place, packages=["fruit==1.0"], wheels=wheels) as first,
        dios.Executor(1, node=node.place, packages=["fruit==2.0"], wheels=wheels) as second,
        dios.Executor(1, node=node.place) as plain,
    ):
        futures = [executor.submit(version_of_fruit) for executor in (first, second, plain)]
        assert [future.result() for future in futures[:2]] == ["1.0", "2.0"]
        assert isinstance(futures[2].exception(), ModuleNotFoundError)
        assert first.submit(attempts_to_change).result() == ["OSError", "OSError"]


def test_the_same_request_installs_nothing_again(
    node: RunningNode, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither here nor on the node, also after it was restarted; unless that is asked for."""
    with dios.connect(node.place) as connected:
        name = environments.environment_on(connected, ["fruit"], wheels=wheels)
    node.stop()
    node.restart()
    monkeypatch.setattr(environments, "build", lambda _: pytest.fail("it was installed again"))
    monkeypatch.setattr(environments, "_blob_of", lambda *_: pytest.fail("it was sent again"))
    with dios.connect(node.place) as connected:
        assert environments.environment_on(connected, ["fruit"], wheels=wheels) == name
        monkeypatch.undo()
        assert environments.environment_on(connected, ["fruit"], wheels=wheels, again=True) == name


def test_a_damaged_archive_is_built_again(node: RunningNode, wheels: Path) -> None:
    """A power cut may have cut it off; the node notices, and the request is installed anew."""
    with dios.connect(node.place) as connected:
        name = environments.environment_on(connected, ["fruit"], wheels=wheels)

        def are_removed() -> bool:
            connected.prune_environments()  # one stays while a task of it ends
            return not connected.read_table("environments")

        wait_until(are_removed, "all environments are removed")
        for path in archives.folder_of_archives().glob("*.archive"):
            path.write_bytes(path.read_bytes()[:-1])
        assert environments.environment_on(connected, ["fruit"], wheels=wheels) == name


def test_a_lock_with_other_digests_is_refused(node: RunningNode, wheels: Path, tmp_path: Path) -> None:
    """A wheel that was changed since the lock was made is not installed."""
    digests = {
        name: hashlib.sha256((wheels / f"{name}-py3-none-any.whl").read_bytes()).hexdigest()
        for name in ("fruit-1.0", "seed-0.1")
    }
    lines = [f"{name.replace('-', '==')} --hash=sha256:{digest}" for name, digest in digests.items()]
    lock = tmp_path / "lock.txt"
    lock.write_text("\n".join(lines), encoding="utf-8")
    with dios.Executor(1, node=node.place, packages=[f"@{lock}"], wheels=wheels) as executor:
        assert executor.submit(version_of_fruit).result() == "1.0"
    lock.write_text("\n".join(lines).replace(digests["seed-0.1"], "0" * 64), encoding="utf-8")
    with pytest.raises(InvalidError, match=r"HASHES|hash"):
        dios.Executor(1, node=node.place, packages=[f"@{lock}"], wheels=wheels)


def test_a_node_that_is_killed_while_it_unpacks_leaves_nothing_half(tmp_path: Path) -> None:
    """After its next start an environment is complete or not there, and the next attempt succeeds."""
    files = {f"large/part{number}.py": f"x = {number}\n" for number in range(3000)}
    make_wheel(tmp_path / "wheels", "large", "1.0", {"large/__init__.py": "", **files})
    with running_node(tmp_path / "data") as running, concurrent.futures.ThreadPoolExecutor() as threads:
        folder = running.data / "environments"

        def attempt() -> str:
            with dios.connect(running.place) as connected:
                return environments.environment_on(connected, ["large"], wheels=tmp_path / "wheels")

        killed = threads.submit(attempt)
        parts = ".temporary/*/packages/large/*"
        wait_until(lambda: any(folder.glob(parts)) or killed.done(), "it unpacks", 120)
        running.kill()
        killed.exception()
        running.restart()
        assert not (folder / ".temporary").exists()
        assert all(len(list(place.rglob("part*.py"))) == 3000 for place in folder.glob("*/*"))
        name = attempt()
        with dios.connect(running.place) as connected:
            (row,) = connected.read_table("environments")
            assert row["environment"] == name


def test_a_session_has_packages(node: RunningNode, wheels: Path) -> None:
    """A sandbox imports them, and no fork of it can be made."""
    with dios.Sandbox(node=node.place, packages=["fruit==1.0"], wheels=wheels) as sandbox:
        assert sandbox.run("import fruit; fruit.VERSION").value_repr == "'1.0'"
    with pytest.raises(InvalidError, match="forkable"):
        dios.Sandbox(node=node.place, packages=["fruit==1.0"], wheels=wheels, forkable=True)


def test_a_session_in_gvisor_has_packages(node: RunningNode, wheels: Path) -> None:
    """They are mounted there, and come before the packages of the machine."""
    gvisor_or_skip()
    with dios.Sandbox(node=node.place, packages=["fruit==1.0"], wheels=wheels, isolation="gvisor") as box:
        assert box.run("import fruit; fruit.VERSION").value_repr == "'1.0'"
        assert box.run("fruit.__file__.startswith('/environment/')").value_repr == "True"


async def test_an_async_session_has_packages(node: RunningNode, wheels: Path) -> None:
    """They are brought over a connection of their own, so an open node is refused."""
    async with dios.aio.Sandbox(node=node.place, packages=["fruit==2.0"], wheels=wheels) as sandbox:
        assert (await sandbox.run("import fruit; fruit.VERSION")).value_repr == "'2.0'"
    async with dios.aio.open_node(node.place) as opened:
        with pytest.raises(InvalidError, match="place of the node"):
            await dios.aio.Sandbox(node=opened, packages=["fruit"], wheels=wheels).__aenter__()


def test_other_nodes_get_an_environment_too(
    tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers start in it on the node that the caller names, and with ``work`` on all that are up."""
    settings = {"accept_weaker_sandbox": "yes", "pool_size": "1"}
    cluster = local_cluster.make(tmp_path / "cluster", nodes=2, settings=settings)
    try:
        local_cluster.start(cluster)
        with dios.connect(str(cluster.nodes[0].socket)) as near:
            far = cluster.nodes[1].name
            with dios.Executor(1, node=near, host=far, packages=["fruit==1.0"], wheels=wheels) as executor:
                assert executor.submit(version_of_fruit).result() == "1.0"
            hosts = environments.hosts_for(near, "", scheduled=True)
            assert set(hosts) == {"", far}
            name = environments.environment_on(near, ["fruit==2.0"], wheels=wheels, hosts=hosts)
            for host in (cluster.nodes[0].name, far):
                with near.run(PROGRAM.encode(), template=name, host=host) as task:
                    assert task.wait().ok
            monkeypatch.setattr(environments, "_blob_of", lambda *_: pytest.fail("it was sent again"))
            assert environments.environment_on(near, ["fruit==2.0"], wheels=wheels, hosts=hosts) == name
            with pytest.raises(NotSupportedError, match="no environment"):
                near.run(b"pass", template=name_for("0" * 40), host=far)
    finally:
        local_cluster.stop(cluster)


@pytest.mark.parametrize(
    ("packages", "reason"),
    [
        (["fruit==9"], "No matching distribution"),
        (["fruit==1.0", "fruit==2.0"], "conflict"),
        (["pear"], "No matching distribution"),
    ],
)
def test_what_cannot_be_installed_is_refused_with_the_reason(
    node: RunningNode, wheels: Path, packages: list[str], reason: str
) -> None:
    """The words of the installer are in the error, and no half of an installation is left."""
    with pytest.raises(InvalidError, match=reason):
        dios.Executor(1, node=node.place, packages=packages, wheels=wheels)
    assert not list(archives.folder_of_archives().glob("building-*"))


def test_a_template_and_packages_exclude_each_other(node: RunningNode, wheels: Path) -> None:
    """A task starts from one or in the other."""
    with pytest.raises(InvalidError, match="template or"):
        dios.Executor(1, node=node.place, template="data", packages=["fruit"], wheels=wheels)


def test_a_node_without_room_for_environments_says_so(tmp_path: Path, wheels: Path) -> None:
    """Its owner has decided that, and the error names the setting."""
    with (
        running_node(tmp_path / "data", environments_bytes="0") as running,
        pytest.raises(NotSupportedError, match="environments_bytes"),
    ):
        dios.Executor(1, node=running.place, packages=["fruit"], wheels=wheels)


def test_commands_build_list_show_and_remove(node: RunningNode, wheels: Path, tmp_path: Path) -> None:
    """What a command builds, a task uses by its name; what a task uses is not removed."""
    person = Person(tmp_path)
    person.environment["DIOS_NODE"] = node.place
    name = rows_of(person, f"dios env build fruit==2.0 --wheels {wheels} --json")["environment"]
    (tmp_path / "job.py").write_text(PROGRAM, encoding="utf-8")
    assert person.types(f"dios run job.py --template {name}").stdout == "2.0\n"
    installed = person.types(f"dios run job.py --packages fruit==1.0 --wheels {wheels}")
    assert installed.stdout == "1.0\n"
    rows = {row["environment"]: row for row in rows_of(person, "dios env ls --json")}
    assert rows[name]["packages"] == ["fruit==2.0", "seed==0.1"]
    assert rows[name]["bytes"] > 0
    assert rows_of(person, f"dios env show {name} --json")["environment"] == name
    with dios.Executor(1, node=node.place, packages=["fruit==1.0"], wheels=wheels) as executor:
        assert executor.submit(version_of_fruit).result() == "1.0"
        assert name in rows_of(person, "dios env prune --unused 0s --json")["removed"]
        (record,) = (node.data / "environments").glob("*/*/about.json")
        wheel = hashlib.sha256((wheels / "fruit-1.0-py3-none-any.whl").read_bytes()).hexdigest()
        assert ["fruit", "1.0", wheel] in json.loads(record.read_bytes())["packages"]
        (kept,) = rows_of(person, "dios env ls --json")
        assert kept["in_use"]
        assert executor.submit(version_of_fruit).result() == "1.0"
        started_ns = record.stat().st_mtime_ns
    wait_until(lambda: record.stat().st_mtime_ns > started_ns, "the end of the worker to be a use")
    refused = person.types(f"dios run job.py --template {name}", status=125)
    assert "dios env build" in refused.stderr


def test_wheels_of_a_group_are_installed(node: RunningNode, wheels: Path, tmp_path: Path) -> None:
    """Where there is no index, a group has the wheels; the same ones are not copied twice."""
    person = Person(tmp_path)
    person.environment["DIOS_NODE"] = node.place
    person.types("dios group create offline")
    person.types(f"dios sync {wheels} dios://offline/wheels")
    (tmp_path / "job.py").write_text(PROGRAM, encoding="utf-8")
    line = "dios run job.py --packages fruit==1.0 --wheels"
    assert person.types(f"{line} dios://offline/wheels").stdout == "1.0\n"
    person.types("dios rm offline/wheels/seed-0.1-py3-none-any.whl")
    assert "seed" in person.types(f"{line} dios://offline/wheels", status=125).stderr
    assert "no such group" in person.types(f"{line} dios://elsewhere", status=125).stderr
    assert "no folder" in person.types(f"{line} ./missing", status=125).stderr


def rows_of(person: Person, line: str) -> Any:  # type: ignore[explicit-any]  # JSON
    """Return what a command prints as JSON."""
    return json.loads(person.types(line).stdout)

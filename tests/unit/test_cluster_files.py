"""What stands in cluster/ is well formed, says the same everywhere, and gives nothing away.

Not for: running it, which ``make docker`` and the lab do. Where a tool that knows a format better is on the
machine, it is asked too.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from dios.host.confinement import policy

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "cluster"
MANIFESTS = sorted((CLUSTER / "kubernetes").glob("*.yaml"))
UNITS = [CLUSTER / "systemd" / "dios-node.service", CLUSTER / "systemd" / "user" / "dios-node.service"]
NODES = ("n1", "n2", "n3")
UID = 10001
PORT = 7400
NEEDED = ("clone3", "unshare", "mount", "umount2", "pivot_root", "mount_setattr", "sethostname", "seccomp")
"""System calls with which a node confines its tasks."""

T = TypeVar("T")


class Health(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What a service changes of the image's health check."""

    disable: bool = False


class Needs(msgspec.Struct, forbid_unknown_fields=True):
    """What must have come to pass before a service starts."""

    condition: str


class Build(msgspec.Struct, forbid_unknown_fields=True):
    """How an image is made."""

    context: str
    dockerfile: str
    args: dict[str, str]


class Service(msgspec.Struct, forbid_unknown_fields=True):
    """A service of the compose file."""

    image: str
    init: bool
    restart: str
    read_only: bool
    cap_drop: list[str]
    security_opt: list[str]
    stop_grace_period: str
    tmpfs: list[str]
    command: list[str]
    volumes: list[str]
    healthcheck: Health = Health()
    build: Build | None = None
    hostname: str = ""
    entrypoint: list[str] = []
    depends_on: dict[str, Needs] = {}
    network_mode: str = ""
    profiles: list[str] = []


class Compose(msgspec.Struct, forbid_unknown_fields=True):
    """The compose file."""

    services: dict[str, Service]
    volumes: dict[str, None]
    pattern: dict[str, object] = msgspec.field(name="x-node")


def table(value: object) -> dict[str, object]:
    """A mapping, or a failure."""
    return msgspec.convert(value, dict[str, object])


def at(value: object, *path: str | int) -> object:
    """What stands in nested mappings and lists at ``path``."""
    for step in path:
        value = msgspec.convert(value, list[object])[step] if isinstance(step, int) else table(value)[step]
    return value


def manifest(name: str) -> dict[str, object]:
    """A Kubernetes manifest."""
    return msgspec.yaml.decode((CLUSTER / "kubernetes" / name).read_bytes(), type=dict[str, object])


@pytest.fixture(scope="module")
def compose() -> Compose:
    """The compose file, strictly read."""
    return msgspec.yaml.decode((CLUSTER / "compose.yaml").read_bytes(), type=Compose)


def asked(*command: str, folder: Path = CLUSTER, **environment: str) -> str:
    """What a tool says; a skip where it is not on this machine, a failure where it fails."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not on this machine")
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


# -- the compose file -------------------------------------------------------------------------------
def test_three_nodes_stand_in_two_racks(compose: Compose) -> None:
    """The compose file starts n1, n2 and n3 under their names, in two racks; the others join the first."""
    rows = {name: compose.services[name].command[1:] for name in NODES}
    assert all(compose.services[name].hostname == name == row[0] for name, row in rows.items())
    assert len({row[1] for row in rows.values()}) == 2
    assert [row[2:] for row in rows.values()] == [[], ["n1"], ["n1"]]


def test_every_volume_and_file_named_is_there(compose: Compose) -> None:
    """Volumes that services mount are declared, and every one declared is mounted."""
    mounted = {
        volume.partition(":")[0] for service in compose.services.values() for volume in service.volumes
    }
    assert mounted == set(compose.volumes)
    build = compose.services["n1"].build
    assert build is not None
    assert (CLUSTER / build.context / build.dockerfile).exists()


def test_every_node_keeps_its_data_to_itself(compose: Compose) -> None:
    """No two nodes mount one data directory."""
    data = [v for name in NODES for v in compose.services[name].volumes if v.endswith(":/var/lib/dios")]
    assert len(set(data)) == len(NODES)


@pytest.mark.parametrize("name", [*NODES, "tokens", "job"])
def test_every_service_has_as_little_as_it_can(compose: Compose, name: str) -> None:
    """Services drop every capability, gain none, write to volumes only, and bring our filter."""
    service = compose.services[name]
    assert service.read_only
    assert service.cap_drop == ["ALL"]
    assert service.security_opt == ["no-new-privileges:true", "seccomp:./seccomp.json"]
    assert (CLUSTER / "seccomp.json").exists()


def test_nodes_are_looked_after(compose: Compose) -> None:
    """Every node has the health check of the image, and the others wait for what they need."""
    assert all(compose.services[name].healthcheck == Health() for name in NODES)
    assert re.search(r"^HEALTHCHECK .*CMD \[", (CLUSTER / "Dockerfile").read_text(), re.MULTILINE)
    assert compose.services["tokens"].depends_on["n1"].condition == "service_healthy"
    for name in NODES[1:]:
        assert compose.services[name].depends_on["tokens"].condition == "service_completed_successfully"


def test_a_job_is_not_started_with_the_cluster(compose: Compose) -> None:
    """The job runs only when it is asked for, once, with no network."""
    job = compose.services["job"]
    assert (job.profiles, job.restart, job.network_mode) == (["job"], "no", "none")


@pytest.mark.parametrize("program", [("docker-compose",), ("docker", "compose")])
def test_the_engines_tools_take_the_compose_file(program: tuple[str, ...]) -> None:
    """Both generations of Docker Compose, where they are here, take the file without complaint."""
    if len(program) == 2 and shutil.which(program[0]) is not None:
        version = subprocess.run([*program, "version"], capture_output=True, check=False)
        if version.returncode:
            pytest.skip("this docker has no compose plugin")
    assert "service_completed_successfully" in asked(*program, "config")


def test_no_secret_stands_in_an_environment() -> None:
    """No file of cluster/ gives a token as an argument or in the environment: only a file's name."""
    for path in sorted(path for path in CLUSTER.rglob("*") if path.is_file() and path.suffix != ".py"):
        text = path.read_text()
        assert not re.search(r"DIOS_TOKEN|--(?:token|invitation)[ =](?!-)", text), path


# -- the image --------------------------------------------------------------------------------------
def test_the_image_is_made_of_files_that_are_there() -> None:
    """Each file that the Dockerfile copies or the wheel includes is there, and .dockerignore passes it."""
    text = (CLUSTER / "Dockerfile").read_text()
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [
        word for line in re.findall(r"^COPY (cluster/.*) \S+$", text, re.MULTILINE) for word in line.split()
    ]
    assert copied
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    for name in (*copied, *included):
        assert (ROOT / name).exists(), name
        assert any(name.startswith(part) for part in allowed), name


def test_the_image_runs_as_nobody_special() -> None:
    """The last stage ends as the user dios, whose number the manifests know, and keeps no secret."""
    text = (CLUSTER / "Dockerfile").read_text()
    assert re.findall(r"^USER (\S+)$", text, re.MULTILINE)[-1] == "dios"
    assert f"--uid {UID} " in text
    assert f"EXPOSE {PORT}\n" in text
    pod = at(manifest("statefulset.yaml"), "spec", "template", "spec")
    assert at(pod, "securityContext", "runAsUser") == UID


def test_one_script_names_the_packages_of_the_image() -> None:
    """Its extras exist, and neither the Dockerfile, the lab nor the page of deployments repeats them."""
    named = re.findall(r"\[([a-z,]+)\]", (CLUSTER / "wheels.sh").read_text())
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert len(named) == 1
    assert {"cluster", "metrics"} <= set(named[0].split(",")) <= set(extras)
    for path in (CLUSTER / "Dockerfile", ROOT / "tests/lab/compose.py", ROOT / "docs/deploy.md"):
        text = path.read_text()
        assert "wheels.sh" in text, path
        assert not re.search(r"\[(cluster|metrics)|cyclonedx-bom", text), path


def test_the_image_has_the_python_that_the_project_wants() -> None:
    """The default base image's Python is one that pyproject.toml allows."""
    match = re.search(r"^ARG BASE=\S+python:3\.(\d+)-", (CLUSTER / "Dockerfile").read_text(), re.MULTILINE)
    assert match is not None
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert int(match[1]) >= int(str(wanted).rpartition(".")[2])


def test_the_filter_leaves_what_confines_tasks() -> None:
    """The filter of the containers names real system calls, and none that a node or its tasks need."""
    profile = json.loads((CLUSTER / "seccomp.json").read_text())
    assert profile["defaultAction"] == "SCMP_ACT_ALLOW"
    denied = {name for rule in profile["syscalls"] for name in rule["names"]}
    assert {"kexec_load", "init_module", "bpf", "ptrace", "open_by_handle_at"} <= denied
    of_tasks = {name for allowed in policy.ALLOWED for name in allowed.names}
    # Tasks were seen to start and to be confined in a container that refuses this one.
    assert denied & {*NEEDED, *policy.CALLED_BY_THE_ZYGOTE, *of_tasks} <= {"syslog"}


# -- units of systemd -------------------------------------------------------------------------------
def unit(path: Path) -> configparser.SectionProxy:
    """The section [Service] of a unit."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign] # keys of units are told apart by case
    parser.read_string(path.read_text())
    return parser["Service"]


@pytest.mark.parametrize("path", UNITS, ids=["system", "user"])
def test_units_leave_what_confines_tasks(path: Path) -> None:
    """No unit takes away namespaces, mounts, host names or processes that the sandbox works with."""
    service = unit(path)
    for taken in ("RestrictNamespaces", "PrivateUsers", "ProtectHostname", "ProtectProc", "ProcSubset"):
        assert taken not in service
    filtered = service.get("SystemCallFilter", "")
    assert not set(filtered.lstrip("~").split()) & {
        "@mount",
        "@privileged",
        "@sandbox",
        "@process",
        "@setuid",
    }
    assert service.get("NoNewPrivileges") == "yes"
    assert "memory" in service["Delegate"].split()


@pytest.mark.parametrize("path", UNITS, ids=["system", "user"])
def test_systemd_takes_the_units(path: Path, tmp_path: Path) -> None:
    """The tool of systemd itself finds nothing wrong with a unit, once its program is where it says."""
    text = re.sub(r"^(Exec\w+)=\S+", rf"\1={sys.executable}", path.read_text(), flags=re.MULTILINE)
    copy = tmp_path / path.name
    copy.write_text(text)
    kind = ["--user"] if path.parent.name == "user" else []
    said = asked("systemd-analyze", *kind, "verify", "--man=no", str(copy), XDG_RUNTIME_DIR=str(tmp_path))
    # Of what it merely warns, other units of the machine are no affair of ours.
    assert str(copy) not in said, said


def test_systemd_takes_the_timer_of_backups(tmp_path: Path) -> None:
    """The tool of systemd finds nothing wrong with the timer and its service, which make a backup."""
    units = {path.name: path.read_text() for path in (CLUSTER / "systemd" / "user").glob("dios-backup.*")}
    assert "dios backup create ${TARGET}" in units["dios-backup.service"]
    for name, text in units.items():
        started = re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", text, flags=re.MULTILINE)
        (tmp_path / name).write_text(started)
    paths = [str(tmp_path / name) for name in units]
    said = asked("systemd-analyze", "--user", "verify", "--man=no", *paths, XDG_RUNTIME_DIR=str(tmp_path))
    assert not [path for path in paths if path in said], said


# -- Kubernetes -------------------------------------------------------------------------------------
def test_manifests_belong_together() -> None:
    """The kustomization names every manifest, and all speak of the same pods, port and service."""
    listed = msgspec.convert(manifest("kustomization.yaml")["resources"], list[str])
    assert sorted([*listed, "kustomization.yaml"]) == [path.name for path in MANIFESTS]
    stateful, service = manifest("statefulset.yaml"), manifest("service.yaml")
    labels = at(stateful, "spec", "template", "metadata", "labels")
    assert at(stateful, "spec", "selector", "matchLabels") == labels == at(service, "spec", "selector")
    assert at(manifest("disruption.yaml"), "spec", "selector", "matchLabels") == labels
    assert at(manifest("network-policy.yaml"), "spec", "podSelector", "matchLabels") == labels
    assert at(stateful, "spec", "serviceName") == at(service, "metadata", "name")
    assert at(service, "spec", "clusterIP") == "None"
    assert at(service, "spec", "ports", 0, "port") == PORT


def test_pods_keep_to_the_restricted_standard() -> None:
    """The pod asks for nothing that the restricted level of pod security refuses, and brings our filter."""
    pod = at(manifest("statefulset.yaml"), "spec", "template", "spec")
    container = at(pod, "containers", 0)
    context = table(at(container, "securityContext"))
    assert at(pod, "securityContext", "runAsNonRoot") is True
    assert at(pod, "securityContext", "seccompProfile", "type") == "Localhost"
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert at(pod, "automountServiceAccountToken") is False
    assert at(container, "ports", 0, "containerPort") == PORT
    for probe in ("startupProbe", "livenessProbe"):
        assert at(container, probe, "exec", "command") == ["dios-node", "status"]
    assert at(container, "readinessProbe", "exec", "command") == ["dios-node", "status", "--fit"]


def test_volumes_of_pods_are_declared() -> None:
    """Every mount of the pod is a volume of it or a claim, and the token comes as a file."""
    spec = at(manifest("statefulset.yaml"), "spec")
    mounts = msgspec.convert(
        at(spec, "template", "spec", "containers", 0, "volumeMounts"), list[dict[str, object]]
    )
    volumes = msgspec.convert(at(spec, "template", "spec", "volumes"), list[dict[str, object]])
    claims = {
        at(claim, "metadata", "name")
        for claim in msgspec.convert(at(spec, "volumeClaimTemplates"), list[object])
    }
    assert {mount["name"] for mount in mounts} == {volume["name"] for volume in volumes} | claims
    secret = next(volume for volume in volumes if volume["name"] == "join")
    assert table(secret["secret"])["optional"] is True


def test_kubectl_puts_the_manifests_together() -> None:
    """kubectl, where it is here, builds the kustomization."""
    built = asked("kubectl", "kustomize", "kubernetes")
    assert built.count("\nkind: ") + built.startswith("kind: ") == len(MANIFESTS) - 1

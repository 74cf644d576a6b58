"""The calls that containers may make, and the order to their runtime."""

from __future__ import annotations

import json
import os
import shutil
import signal
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn, cast

import msgspec
import pytest

from dios.errors import InvalidError, NotSupportedError
from dios.host.confinement.native_programs import NativeProgram
from dios.host.confinement.policy import ALLOWED, KILLED
from dios.host.containers import calls, container, runtimes
from dios.host.containers.bundle import configuration
from dios.host.containers.container import TrialLimits, require
from dios.host.containers.entry_points import STATUS as REPORT
from dios.host.containers.entry_points import status_of_container
from dios.host.containers.first_process import Order, gap_of, kernel_version, main
from dios.host.containers.runtimes import (
    GVISOR,
    NEEDED,
    ContainerSetup,
    find_gvisor,
    is_gvisor,
    is_known,
    known_runtimes,
    setup_for,
)

PYTHON = NativeProgram("python", "/usr/bin/python3", "", ())
IN_IMAGE = ContainerSetup(NativeProgram("crun", "/usr/bin/crun", "", ()), PYTHON)
IN_GVISOR = ContainerSetup(NativeProgram(GVISOR, "/usr/bin/runsc", "", ()), PYTHON, has_image=False)

INSIDE = {"inotify_add_watch", "inotify_init", "inotify_init1", "userfaultfd", "chroot", "setns", "unshare"}


def order(setup: ContainerSetup = IN_IMAGE) -> dict[str, Any]:  # type: ignore[explicit-any]  # JSON
    """The order to a runtime, as it reads it."""
    command, mounts = ("/.dios-python/python",), {"/.dios-python": "/source"}
    request = configuration(setup, "/root", command, TrialLimits(), mounts)
    return cast("dict[str, Any]", json.loads(msgspec.json.encode(request)))  # type: ignore[explicit-any]


def test_no_permitted_call_ends_a_pure_task_or_makes_a_namespace() -> None:
    """Each call is named once."""
    assert not set(calls.PERMITTED) & (set(KILLED) | INSIDE | {"clone3"} | set(calls.COMPARED))
    assert len(set(calls.PERMITTED)) == len(calls.PERMITTED)


def test_a_pure_task_can_make_no_call_that_an_image_cannot() -> None:
    """The session itself is the same program."""
    needed = {name for allow in ALLOWED for name in allow.names}
    assert needed - set(calls.PERMITTED) - set(calls.COMPARED) == set()


def test_a_call_whose_arguments_are_checked_for_a_pure_task_is_compared_or_has_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The filter is not made without; a reason for a call that is compared, or not checked, is none."""
    checked = {name for allow in ALLOWED if allow.checked for name in allow.names}
    assert checked <= {*calls.COMPARED, *calls.UNCOMPARED}
    assert not set(calls.UNCOMPARED) & set(calls.COMPARED)
    assert set(calls.UNCOMPARED) <= checked & set(calls.PERMITTED)
    monkeypatch.setattr(calls, "UNCOMPARED", {name: "" for name in calls.UNCOMPARED if name != "kill"})
    with pytest.raises(ValueError, match="may not make kill"):
        calls.filter_of("x86_64")


@pytest.mark.parametrize("name", ["mmap", "fcntl"])
def test_a_compared_call_is_not_permitted_with_any_arguments(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A name on both lists would make its comparisons void."""
    monkeypatch.setattr(calls, "PERMITTED", (*calls.PERMITTED, name))
    with pytest.raises(ValueError, match=name):
        calls.filter_of("x86_64")


def test_no_comparison_excludes_values() -> None:
    """The upper half of a register, which the kernel does not use, would make any value another one."""
    rows = [row for alternatives in calls.COMPARED.values() for row in chain.from_iterable(alternatives)]
    assert {row["op"] for row in cast("list[dict[str, str]]", rows)} == {"SCMP_CMP_EQ", "SCMP_CMP_MASKED_EQ"}


def test_a_call_on_both_lists_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The filter is not made."""
    monkeypatch.setattr(calls, "PERMITTED", (*calls.PERMITTED, "bpf"))
    with pytest.raises(ValueError, match="bpf"):
        calls.filter_of("x86_64")


def test_the_order_gives_up_every_right() -> None:
    """A user namespace with one user, no new privileges, seven capabilities, and limits."""
    request = order()
    process, linux = request["process"], request["linux"]
    assert process["noNewPrivileges"]
    assert {row["type"] for row in linux["namespaces"]} == {"user", "pid", "mount"}
    assert [row["size"] for row in linux["uidMappings"] + linux["gidMappings"]] == [1, 1]
    assert len(process["capabilities"]["bounding"]) == 7
    assert not {"CAP_SYS_ADMIN", "CAP_SYS_CHROOT", "CAP_MKNOD", "CAP_NET_RAW"} & set(
        process["capabilities"]["bounding"]
    )
    assert linux["seccomp"]["defaultAction"] == "SCMP_ACT_ERRNO"
    bounds = {row["type"]: row["hard"] for row in process["rlimits"]}
    assert bounds["RLIMIT_NPROC"] == 64
    assert (bounds["RLIMIT_MEMLOCK"], bounds["RLIMIT_CORE"]) == (0, 0)


STATUS = "Name:\tx\nCapPrm:\t00fb\nCapEff:\t00fb\nCapBnd:\t00fb\nNoNewPrivs:\t1\nSeccomp:\t2\n"


@pytest.mark.parametrize(
    ("row", "other", "gap"),
    [
        ("Seccomp:\t2", "Seccomp:\t0", "filter"),
        ("Seccomp:\t2\n", "", "filter"),
        ("NoNewPrivs:\t1", "NoNewPrivs:\t0", "privileges"),
        ("CapBnd:\t00fb", "CapBnd:\t2000fb", "capabilities"),
        ("CapEff:\t00fb", "CapEff:\t2000fb", "capabilities"),
        ("CapPrm:\t00fb", "CapPrm:\t04fb", "capabilities"),
    ],
)
def test_a_container_that_is_not_confined_runs_nothing(row: str, other: str, gap: str) -> None:
    """The first process looks for each part, because a runtime may have been built without it."""
    assert gap_of(STATUS) == ""
    assert gap in gap_of(STATUS.replace(row, other))


def test_a_first_process_in_the_kernel_of_the_machine_runs_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A runtime that shall have its own kernel may be another program with its name."""

    def leave(status: int) -> NoReturn:
        raise SystemExit(status)

    monkeypatch.setattr(os, "_exit", leave)
    order: Order = {
        "paths": [],
        "variables": [],
        "folder": "/",
        "links": {},
        "machine": kernel_version(),
    }
    with pytest.raises(SystemExit, match="1"):
        main(order, "module:function")
    assert capfd.readouterr().err == "the container is not confined: its kernel is that of the machine\n"


def test_folders_of_the_machine_are_mounted_read_only() -> None:
    """All others are file systems of the container."""
    for mount in order()["mounts"]:
        if mount["type"] == "none":
            assert mount["source"] == "/source"
            assert {"ro", "nosuid", "nodev"} <= set(mount["options"])
        else:
            assert mount["type"] in {"proc", "tmpfs", "devpts"}


def test_each_missing_mechanism_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one of them no container is made."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for setup in (IN_IMAGE, IN_GVISOR):
        require(setup, NEEDED)
        for name in NEEDED:
            with pytest.raises(ValueError, match=name):
                require(setup, NEEDED - {name})


def test_a_node_of_an_ordinary_user_has_no_containers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its user owns the memory that tasks may only read, and a container would have the root of that user."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ValueError, match="an image needs a node of root"):
        require(IN_IMAGE, NEEDED)
    require(IN_GVISOR, NEEDED)


@pytest.mark.parametrize("status", [0, 3 << 8, 9, 130 << 8, 137 << 8, 255 << 8])
def test_the_end_of_a_task_is_the_reported_one(status: int) -> None:
    """Each of its statuses is distinct from each of its signals."""
    assert status_of_container(0, REPORT.pack(status)) == status


@pytest.mark.parametrize(
    ("status", "report", "end"),
    [
        (9, REPORT.pack(0), 9),
        (137 << 8, b"", 9),
        (1 << 8, b"", 1 << 8),
        (159 << 8, b"", 159 << 8),
        (0, REPORT.pack(signal.SIGSYS), 0),
        (0, REPORT.pack(0x137F), 0),
        (3 << 8, b"x", 3 << 8),
        (3 << 8, REPORT.pack(0) * 2, 3 << 8),
    ],
)
def test_an_end_from_outside_and_a_strange_report_leave_the_status_of_the_runtime(
    status: int, report: bytes, end: int
) -> None:
    """A runtime adds 128 to the number of a signal. No program pretends that a filter has ended it."""
    assert status_of_container(status, report) == end


def test_gvisor_is_found_by_its_name_or_path(tmp_path: Path) -> None:
    """Others are no program of gVisor; one that is not there is named, with the next step."""
    assert all(map(is_gvisor, ("none", "runsc", "/opt/runsc")))
    assert not any(map(is_gvisor, ("", "any", "runc", "/opt/runsc/other")))
    with pytest.raises(NotSupportedError, match=r"has no program .*/runsc in .* Install gVisor"):
        find_gvisor(str(tmp_path / "runsc"))
    with pytest.raises(NotSupportedError, match='gvisor_runtime = "none"'):
        find_gvisor("none")


def test_options_of_newer_releases_are_given_to_those_that_list_them(tmp_path: Path) -> None:
    """The flags come on standard error; a program that fails is refused."""
    script = tmp_path / GVISOR
    script.write_text("#!/bin/sh\nprintf '  -overlay2 value\\n\\tof the root\\n' >&2\n", encoding="utf-8")
    script.chmod(0o755)
    assert "overlay2" in runtimes.flags_of(str(script))
    script.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    with pytest.raises(InvalidError, match="does not list its flags"):
        runtimes.flags_of(str(script))
    program = tmp_path / "other" / GVISOR
    program.parent.mkdir()
    shutil.copy("/bin/true", program)
    assert setup_for(str(program), None).options == ()


def test_a_container_in_gvisor_has_no_rights_and_a_network_of_its_own() -> None:
    """Its temporary files are bounded; Python is mounted read-only."""
    request = order(IN_GVISOR)
    assert request["process"]["capabilities"]["bounding"] == []
    assert {row["type"] for row in request["linux"]["namespaces"]} == {
        "pid",
        "mount",
        "ipc",
        "uts",
        "network",
    }
    (temporary,) = (mount for mount in request["mounts"] if mount["destination"] == "/tmp")
    assert any(option.startswith("size=") for option in temporary["options"])


def test_a_runtime_is_found_by_its_name_or_path(tmp_path: Path) -> None:
    """Others are not known; one that is not there is named."""
    assert all(map(is_known, ("none", "any", "crun", "runc", "/opt/crun")))
    assert not any(map(is_known, ("", "docker", "/bin/sh", "crun --debug")))
    with pytest.raises(NotSupportedError, match="no OCI runtime"):
        known_runtimes(str(tmp_path / "crun"))
    with pytest.raises(NotSupportedError, match='container_runtime = "any"'):
        known_runtimes("none")


def test_the_first_process_is_in_all_namespaces_but_that_of_its_zygotes_user() -> None:
    """What the runtime makes is below these."""
    assert {"user", *container.OF_CHILDREN} >= {"user", "pid", "mount", "net", "ipc", "uts"}

"""The calls that containers may make, and the order to their runtime."""

from __future__ import annotations

import json
import os
import signal
from itertools import chain
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from dios.errors import NotSupportedError
from dios.host.confinement.policy import ALLOWED, KILLED
from dios.host.containers import calls, container
from dios.host.containers.bundle import configuration
from dios.host.containers.container import TrialLimits, require
from dios.host.containers.entry_points import exit_of_container, status_of_container
from dios.host.containers.first_process import gap_of
from dios.host.containers.runtimes import NEEDED, is_known, known_runtimes

INSIDE = {"inotify_add_watch", "inotify_init", "inotify_init1", "userfaultfd", "chroot", "setns", "unshare"}


def order() -> dict[str, Any]:  # type: ignore[explicit-any]  # JSON
    """The order to a runtime, as it reads it."""
    request = configuration("/root", ("/.dios-python/python",), TrialLimits(), {"/.dios-python": "/source"})
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
    require(NEEDED)
    for name in NEEDED:
        with pytest.raises(ValueError, match=name):
            require(NEEDED - {name})


def test_a_node_of_an_ordinary_user_has_no_containers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its user owns the memory that tasks may only read, and a container would have the root of that user."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ValueError, match="an image needs a node of root"):
        require(NEEDED)


@pytest.mark.parametrize(
    ("status", "reported"),
    [(0, 0), (3 << 8, 3 << 8), (137 << 8, 9), (9, 9), (159 << 8, 159 << 8), (255 << 8, 255 << 8)],
)
def test_a_signal_in_the_container_is_one_of_the_task(status: int, reported: int) -> None:
    """A runtime adds 128 to its number."""
    assert status_of_container(status) == reported
    assert status_of_container(exit_of_container(reported) << 8) == reported
    assert status_of_container(status) != signal.SIGSYS, "no program pretends that a filter has ended it"


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

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from dios import limits
from dios.errors import NotSupportedError
from dios.host.confinement import mechanisms
from dios.host.confinement.mechanisms import Availability, Mechanism
from dios.wire.types import Fitness


def test_the_probe_names_every_mechanism_with_a_detail() -> None:
    """Each mechanism is reported, as available or not, with a word on it."""
    probed = mechanisms.probe()
    assert list(probed) == [*mechanisms.NEEDED_FOR_PURE, *mechanisms.LOST_WITHOUT]
    assert all(mechanism.detail for mechanism in probed.values())
    assert {name for name, m in probed.items() if m.needed_for_pure} == set(mechanisms.NEEDED_FOR_PURE)


def test_the_probe_gives_the_same_twice() -> None:
    """Probing changes nothing of the machine or of this process: the second answer is the first."""
    first, second = mechanisms.probe(), mechanisms.probe()
    assert {n: m.available for n, m in first.items()} == {n: m.available for n, m in second.items()}


def test_an_interpreter_that_does_not_start_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe that cannot run leaves every mechanism unknown, with the reason, and a later one answers."""
    with monkeypatch.context() as patch:
        patch.setattr("sys.executable", "/nonexistent/python")
        silent = mechanisms.probe()
    assert {m.availability for m in silent.values()} == {Availability.UNKNOWN}
    assert "did not start" in silent["seccomp"].detail
    later = mechanisms.Probe(silent).run()
    assert {n: m.available for n, m in later.items()} == {
        n: m.available for n, m in mechanisms.probe().items()
    }


def test_an_attempt_that_hangs_leaves_the_answers_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter is ended; what it answered counts, and the rest is unknown and not missing."""
    code = 'import sys, time; print(\'["user", "available", "clone3"]\', flush=True); time.sleep(1000)'

    def start(names: Sequence[str]) -> subprocess.Popen[bytes]:
        assert "landlock" in names
        return subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    monkeypatch.setattr(mechanisms, "_start", start)
    monkeypatch.setattr(limits, "START_QUIET_MAX", 1)
    results = mechanisms.probe()
    assert results["user"].available
    assert results["landlock"].availability is Availability.UNKNOWN
    assert "hung" in results["landlock"].detail


@pytest.mark.parametrize(
    ("number", "temporary"),
    [(errno.ENOMEM, True), (errno.EAGAIN, True), (errno.ENOSYS, False), (errno.EPERM, False)],
)
def test_a_lack_of_memory_is_no_lack_of_a_mechanism(number: int, *, temporary: bool) -> None:
    """Errors that go away by themselves leave a mechanism unknown; a refusal makes it missing."""
    assert mechanisms._is_temporary(OSError(number, "")) is temporary


@pytest.mark.parametrize("forbidden", [True, False])
def test_as_many_namespaces_as_may_be_is_temporary_unless_none_may_be(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, forbidden: bool
) -> None:
    """The kernel has one error for both: a machine on which none are permitted lacks them."""
    for name in ("user", "pid", "mnt", "net", "ipc", "uts"):
        (tmp_path / name).write_text("0\n" if forbidden and name == "net" else "9\n")
    monkeypatch.setattr(mechanisms, "_NAMESPACE_LIMITS", f"{tmp_path}/{{}}")
    assert mechanisms._is_temporary(OSError(errno.ENOSPC, "")) is not forbidden


@pytest.mark.parametrize(
    ("availabilities", "accept_weaker", "fitness"),
    [
        ("AVAILABLE AVAILABLE", False, Fitness.FIT),
        ("AVAILABLE MISSING", False, Fitness.UNFIT),
        ("AVAILABLE MISSING", True, Fitness.FIT),
        ("AVAILABLE UNKNOWN", False, Fitness.UNKNOWN),
        ("AVAILABLE UNKNOWN", True, Fitness.UNKNOWN),
        ("MISSING UNKNOWN", False, Fitness.UNFIT),
        ("MISSING UNKNOWN", True, Fitness.UNKNOWN),
    ],
)
def test_only_what_is_known_to_be_missing_may_be_accepted(
    availabilities: str, fitness: Fitness, *, accept_weaker: bool
) -> None:
    """A weaker sandbox is accepted for a missing mechanism, and never for one that is not known yet."""
    table = {
        str(number): Mechanism(Availability[word], "", needed_for_pure=True)
        for number, word in enumerate(availabilities.split())
    }
    table["optional"] = Mechanism(Availability.UNKNOWN, "", needed_for_pure=False)
    assert mechanisms.fitness_of(table, accept_weaker=accept_weaker) is fitness


def test_a_reason_that_many_share_is_said_once() -> None:
    """A probe that failed as a whole has one cause."""
    text = mechanisms.obstacle_to_pure(mechanisms.all_unknown("the probe was ended by SIGKILL"))
    assert text.count("SIGKILL") == 1
    assert "landlock" in text


def test_what_is_missing_is_said_and_what_is_optional_is_not() -> None:
    """Only needed mechanisms keep a machine from pure tasks; each is named with its detail."""
    table = {
        "seccomp": Mechanism(Availability.MISSING, "ENOSYS", needed_for_pure=True),
        "pid": Mechanism(Availability.AVAILABLE, "", needed_for_pure=True),
        "cgroup_pids": Mechanism(Availability.MISSING, "EROFS", needed_for_pure=False),
    }
    assert mechanisms.obstacle_to_pure(table) == "seccomp missing (ENOSYS)"
    with pytest.raises(NotSupportedError, match=r"seccomp missing \(ENOSYS\)"):
        mechanisms.require_pure(table)
    mechanisms.require_pure({"cgroup_pids": table["cgroup_pids"]})

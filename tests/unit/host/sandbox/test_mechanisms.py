from __future__ import annotations

import pytest

from dios.errors import NotSupportedError
from dios.host.sandbox import mechanisms
from dios.host.sandbox.mechanisms import Mechanism


def test_the_probe_names_every_mechanism_with_a_detail() -> None:
    """Each mechanism is reported, as available or not, with a word on it."""
    found = mechanisms.probe()
    assert list(found) == [*mechanisms.NEEDED_FOR_PURE, *mechanisms.LOST_WITHOUT]
    assert all(mechanism.detail for mechanism in found.values())
    assert {name for name, m in found.items() if m.needed_for_pure} == set(mechanisms.NEEDED_FOR_PURE)


def test_the_probe_gives_the_same_twice() -> None:
    """Probing changes nothing of the machine or of this process: the second answer is the first."""
    first, second = mechanisms.probe(), mechanisms.probe()
    assert {n: m.available for n, m in first.items()} == {n: m.available for n, m in second.items()}


def test_an_interpreter_that_does_not_start_means_nothing_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe that cannot run reports every mechanism as missing, with why."""
    monkeypatch.setattr("sys.executable", "/nonexistent/python")
    found = mechanisms.probe()
    assert not any(m.available for m in found.values())
    assert "nonexistent" in found["seccomp"].detail


def test_what_is_missing_is_said_and_what_is_optional_is_not() -> None:
    """Only needed mechanisms keep a machine from pure tasks; each is named with its detail."""
    table = {
        "seccomp": Mechanism(available=False, detail="ENOSYS", needed_for_pure=True),
        "pid": Mechanism(available=True, detail="", needed_for_pure=True),
        "cgroup_pids": Mechanism(available=False, detail="EROFS", needed_for_pure=False),
    }
    assert mechanisms.missing_for_pure(table) == "seccomp: ENOSYS"
    with pytest.raises(NotSupportedError, match="seccomp: ENOSYS"):
        mechanisms.require_pure(table)
    mechanisms.require_pure({"cgroup_pids": table["cgroup_pids"]})

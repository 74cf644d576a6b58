"""`dios doctor` begins with its verdict, and needs at most a screen."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from dios.cli import main
from dios.cli.nodes import doctor
from dios.node.doctor.diagnosis import Diagnosis, DoctorGuarantee
from dios.node.doctor.finding import DoctorFinding, DoctorLevel

NAMES = [f"mechanism {number}" for number in range(30)]


def diagnosis(level: DoctorLevel, *, confined: bool) -> Diagnosis:
    """A machine on which half of the tests have this level, and half of the promises hold."""
    findings = [
        DoctorFinding(
            name,
            level if number % 2 else DoctorLevel.OK,
            "was refused by the system " * 20,
            "it keeps something",
            f"change {name}" if number % 2 and level is not DoctorLevel.OK else "",
        )
        for number, name in enumerate(NAMES)
    ]
    promises = [
        DoctorGuarantee("Isolation", f"promise {number} " * 20, number % 2 == 0, ("mechanism 1",))
        for number in range(100)
    ]
    fitness = "fit" if confined else "unknown" if level is DoctorLevel.UNKNOWN else "unfit"
    return Diagnosis(confined, fitness, "", "uid 1000", Path("node0"), tuple(findings), tuple(promises))


def shown(monkeypatch: pytest.MonkeyPatch, examined: Diagnosis, *words: str) -> list[str]:
    """The lines of `dios doctor` for this diagnosis."""
    monkeypatch.setattr(doctor, "examine", lambda _data: examined)
    result = CliRunner().invoke(main.app, ["doctor", *words])
    assert result.exit_code == (0 if examined.confined else 1)
    return result.output.splitlines()


def test_the_first_line_says_that_tasks_are_confined(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with everything the verdict is the first line, and there is no list."""
    lines = shown(monkeypatch, diagnosis(DoctorLevel.OK, confined=True))
    assert lines[0] == "Pure tasks are fully confined here, as uid 1000."
    assert "Not ok:" not in lines


def test_the_second_line_is_the_first_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a mechanism is missing, its name and what to change follow the verdict."""
    lines = shown(monkeypatch, diagnosis(DoctorLevel.MISSING, confined=False))
    assert lines[0] == "Pure tasks are NOT fully confined here, and a node refuses them."
    assert lines[1].startswith("First problem: mechanism 1 (")
    assert "Remedy: change mechanism 1." in " ".join(lines)


def test_a_test_without_an_answer_is_not_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where tests had no answer, the verdict says that it is not known, and to ask again."""
    lines = shown(monkeypatch, diagnosis(DoctorLevel.UNKNOWN, confined=False))
    assert lines[0].startswith("It is not known yet")
    assert not any("NOT" in line or line.startswith("  NO ") for line in lines)
    assert any("Run `dios doctor` again" in line for line in lines)


@pytest.mark.parametrize("level", DoctorLevel)
def test_it_fits_a_screen(level: DoctorLevel, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much is not ok, it is shown on 24 lines of 80 columns, and -v names all of it."""
    examined = diagnosis(level, confined=False)
    lines = shown(monkeypatch, examined)
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    everything = "\n".join(shown(monkeypatch, examined, "-v"))
    assert all(name in everything for name in NAMES)
    assert all(guarantee.promise in everything for guarantee in examined.guarantees)


def test_it_never_advises_first_to_weaken_the_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    """The option that accepts a weaker sandbox is named only below all that could be repaired."""
    examined = diagnosis(DoctorLevel.MISSING, confined=False)
    assert "--accept-weaker-sandbox" not in "\n".join(shown(monkeypatch, examined))
    everything = " ".join(shown(monkeypatch, examined, "-v"))
    assert everything.index("Advice:") < everything.index("--accept-weaker-sandbox")

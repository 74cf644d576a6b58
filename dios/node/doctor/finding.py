"""The result of one test of the doctor."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple


class DoctorLevel(enum.StrEnum):
    """The effect of a finding on the node's guarantees; a test without an answer is unknown."""

    OK = "ok"
    WEAK = "weak"
    MISSING = "missing"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """The result of one test; ``advice`` says what to change if it is not ok."""

    name: str
    level: DoctorLevel
    detail: str
    purpose: str
    advice: str = ""


class DoctorTest(NamedTuple):
    """A test: its name, and the purpose of what it examines."""

    name: str
    purpose: str

    def result(self, detail: str, advice: str = "") -> DoctorFinding:
        """Return that all is well, or with an advice that it could be better."""
        level = DoctorLevel.WEAK if advice else DoctorLevel.OK
        return DoctorFinding(self.name, level, detail, self.purpose, advice)

    def missing(self, detail: str, advice: str) -> DoctorFinding:
        """Return that something is missing which a node needs."""
        return DoctorFinding(self.name, DoctorLevel.MISSING, detail, self.purpose, advice)

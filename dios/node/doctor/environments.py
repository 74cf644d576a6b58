"""Tests that a node in a directory can have environments: packages that users choose for their own tasks."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dios.errors import DiosError
from dios.host.confinement.mechanisms import Mechanism
from dios.host.confinement.view import FOR_ENVIRONMENTS
from dios.installation import install_command
from dios.limits import MIB
from dios.node.doctor.finding import DoctorFinding, DoctorTest
from dios.node.settings import load

_TEST: Final = DoctorTest("environments", "users choose packages for their tasks")


def examine_environments(data: Path, mechanisms: Mapping[str, Mechanism]) -> DoctorFinding | None:
    """Return if tasks of a node in ``data`` can have environments; None if its settings cannot be read."""
    try:
        bound = load(data).environments_bytes
    except DiosError:
        return None  # other tests show what is wrong with the settings
    if not bound:
        return _TEST.result("off: environments_bytes is 0")
    missing = [name for name in sorted(FOR_ENVIRONMENTS) if not mechanisms[name].available]
    if missing:
        return _TEST.result(f"refused: this machine lacks {', '.join(missing)}", "see these mechanisms above")
    place = next(folder for folder in (data, *data.parents) if folder.exists())
    if os.statvfs(place).f_flag & os.ST_NOEXEC:
        return _TEST.result(
            f"refused: {place} is on a file system that is mounted noexec",
            "put the data directory on another file system",
        )
    if importlib.util.find_spec("pip") is None:
        return _TEST.result("this Python has no pip, which installs them", install_command("pip"))
    return _TEST.result(f"at most {bound // MIB:,} MiB")

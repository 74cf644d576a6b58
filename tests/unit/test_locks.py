"""dev.lock and hosts.lock, with which `make setup`, `make dist`, `dios up --hosts` and the image install."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
DEVELOPMENT = ROOT / "dev.lock"
HOSTS = ROOT / "dios" / "node" / "bringup" / "hosts.lock"
PRODUCT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LABORATORY = tomllib.loads((ROOT / "labs" / "pyproject.toml").read_text())
UNLOCKED = frozenset({"fuzz", "mutants"})
"""Groups with packages of which there is no wheel."""

ENTRY = re.compile(r"^([a-z0-9-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", re.MULTILINE)


def entries(lock: Path) -> dict[str, tuple[str, str]]:
    """Return the version and the hashes of each package of a lock."""
    return {name: (version, hashes) for name, version, hashes in ENTRY.findall(lock.read_text())}


def requirements(project: dict[str, object]) -> list[str]:
    """Return the dependencies of a project with all its extras."""
    extras = project["optional-dependencies"]
    assert isinstance(extras, dict)
    dependencies = project["dependencies"]
    assert isinstance(dependencies, list)
    return [*dependencies, *(text for extra in extras.values() for text in extra)]


def unmet(texts: list[str], lock: Path) -> list[str]:
    """Return the requirements that no package of a lock satisfies."""
    locked = entries(lock)
    missing = []
    for text in texts:
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        if name == PRODUCT["project"]["name"]:
            continue
        if name not in locked or not requirement.specifier.contains(locked[name][0], prereleases=True):
            missing.append(text)
    return missing


@pytest.mark.parametrize("lock", [DEVELOPMENT, HOSTS], ids=lambda path: path.name)
def test_a_lock_has_one_version_of_each_package_with_hashes_and_nothing_else(lock: Path) -> None:
    """No address of an index, no option and no condition stands in it."""
    text = lock.read_text()
    assert re.fullmatch(r"(#.*\n)*", ENTRY.sub("", text).replace("\n\n", "\n").strip("\n") + "\n"), text[:300]
    assert len(entries(lock)) == text.count("==") > 100


def test_hosts_get_a_locked_version_of_each_dependency() -> None:
    """All extras of the product are in the lock of hosts, in versions that pyproject.toml allows."""
    assert not unmet(requirements(PRODUCT["project"]), HOSTS)


def test_development_gets_a_locked_version_of_each_dependency() -> None:
    """Also those of the laboratory, and of all groups that can be locked."""
    texts = [*requirements(PRODUCT["project"]), *requirements(LABORATORY["project"])]
    groups = PRODUCT["dependency-groups"]
    assert groups.keys() > UNLOCKED
    texts += [text for name in groups.keys() - UNLOCKED for text in groups[name]]
    texts += [text for project in (PRODUCT, LABORATORY) for text in project["build-system"]["requires"]]
    assert not unmet(texts, DEVELOPMENT)


def test_what_is_tested_is_what_hosts_get() -> None:
    """The packages of hosts have the same versions and hashes in development."""
    assert entries(HOSTS).items() <= entries(DEVELOPMENT).items()


def test_every_environment_that_can_be_locked_is_locked() -> None:
    """The Makefile installs with the lock, but for the groups that have none."""
    makefile = (ROOT / "Makefile").read_text()
    calls = re.findall(r"\$\(SET_UP\) (.*)$", makefile, re.MULTILINE)
    open_calls = [call for call in calls if "$(LOCKED)" not in call and "--lock dev.lock" not in call]
    assert len(calls) > len(open_calls)
    assert {group for call in open_calls for group in re.findall(r"--group (\w+)", call)} == UNLOCKED
    assert all("--group" in call for call in open_calls)

"""``make dist``, ``dist-test``, ``sbom`` and ``release``: the packages of a release, as a user gets them.

``dist`` builds a source archive, and the wheel from it, and checks both. ``try`` installs the wheel into a
new environment and follows the README there. ``sbom`` lists all packages of that environment in CycloneDX's
format. ``release`` writes the hashes of these files, and signs them.
"""

from __future__ import annotations

import argparse
import email
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dios.installation import DISTRIBUTION, FILE_NAME
from dios.node.bringup import wheel as own_wheel
from dios.node.bringup.release import HASHES, NAMESPACE, SIGNATURE
from tests.support.docs.typed_page import type_page
from tests.support.node.command_user import Person

ROOT: Final = Path(__file__).resolve().parents[2]
DIST: Final = ROOT / "dist"
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION: Final = str(PROJECT["version"])
URLS: Final = frozenset({"Documentation", "Source", "Issues", "Changelog", "Security"})
CONTACT: Final = re.compile(r"^\*\*Contact:\*\* (.*)$", re.MULTILINE)
WHEEL: Final = DIST / f"{FILE_NAME}-{VERSION}-py3-none-any.whl"
SOURCE: Final = DIST / f"{FILE_NAME}-{VERSION}.tar.gz"
PACKAGES: Final = DIST / f"{FILE_NAME}-{VERSION}.cdx.json"
IN_SOURCE: Final = {
    "cluster",
    "dios",
    "docs",
    "examples",
    "CHANGELOG.md",
    "dev.lock",
    "hatch_build.py",
    "LICENSE",
    "README.md",
    "SECURITY.md",
}
LIST: Final = f"{FILE_NAME}-{VERSION}.dist-info/sboms/{DISTRIBUTION}.cdx.json"
DEPLOY: Final = "dios/deploy/kubernetes/"
OF_FORMAT: Final = {"PKG-INFO", "pyproject.toml", ".gitignore"}
SUITES: Final = ("test", "tests", "benchmarks", "labs")


class FailedError(Exception):
    """A package is not as it should be."""


def step(title: str) -> None:
    """Say what comes next."""
    sys.stdout.write(f"{title}\n")
    sys.stdout.flush()


def require(condition: object, description: str) -> None:
    """Raise FailedError if a condition does not hold."""
    if not condition:
        raise FailedError(description)


def run(*command: str | Path, stdin: str = "") -> str:
    """Run a tool; raise FailedError with its output if it fails."""
    done = subprocess.run(command, cwd=ROOT, input=stdin, capture_output=True, text=True, check=False)
    require(
        done.returncode == 0, f"{command[0]} ended with status {done.returncode}\n{done.stdout}{done.stderr}"
    )
    return done.stdout


# -- dist ---------------------------------------------------------------------------------------------
def build() -> None:
    """Build the archive and the wheel, and check them."""
    shutil.rmtree(DIST, ignore_errors=True)
    step("building the source archive, and the wheel from it")
    # The tools that build are those of the lock, and the hook lists the packages of hosts.
    os.environ["HATCH_BUILD_HOOKS_ENABLE"] = "true"
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", DIST)
    require(set(DIST.iterdir()) == {WHEEL, SOURCE}, f"built: {sorted(DIST.iterdir())}")
    step("twine check --strict")
    run(sys.executable, "-m", "twine", "check", "--strict", WHEEL, SOURCE)
    step("the wheel from the archive is the wheel from the tree")
    with tempfile.TemporaryDirectory() as name:
        run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", name)
        require((Path(name) / WHEEL.name).read_bytes() == WHEEL.read_bytes(), "the two wheels differ")
    check_wheel()
    check_source()
    for path in (SOURCE, WHEEL):
        step(f"dist/{path.name}: {path.stat().st_size:,} bytes")
    for point in open_points():
        step(f"not to be published yet: {point} (docs/releasing.md)")


def open_points() -> list[str]:
    """Return what the sources still lack before a package can be published."""
    points = []
    contact = CONTACT.search((ROOT / "SECURITY.md").read_text())
    if contact is None or contact.group(1) == "not set":
        points.append("SECURITY.md has no contact")
    if missing := sorted(URLS - set(PROJECT.get("urls", {}))):
        points.append(f"pyproject.toml has no URL for {', '.join(missing)}")
    return points


def check_wheel() -> None:
    """The wheel has the package, its description, its licence and the mark of its types, and nothing else."""
    step("the contents of the wheel")
    described = f"{FILE_NAME}-{VERSION}.dist-info"
    with zipfile.ZipFile(WHEEL) as archive:
        names = set(archive.namelist())
        metadata = email.message_from_bytes(archive.read(f"{described}/METADATA"))
    tops = {name.split("/")[0] for name in names}
    require(tops == {"dios", described}, f"the wheel has {sorted(tops)}")
    strange = {name for name in names if set(name.split("/")[1:-1]) & {*SUITES, "__pycache__"}}
    require(not strange, f"the wheel has {sorted(strange)[:5]}")
    for name in ("dios/py.typed", f"{described}/licenses/LICENSE", f"{described}/entry_points.txt", LIST):
        require(name in names, f"the wheel has no {name}")
    require(metadata["Version"] == VERSION, f"the wheel says version {metadata['Version']}")
    require(metadata["License-Expression"] == "Apache-2.0", "the wheel says no licence")
    deployed = {DEPLOY + path.name for path in (ROOT / "cluster" / "kubernetes").iterdir()}
    require(deployed <= names, f"the wheel has no {sorted(deployed - names)}")
    # Hosts of `dios up --hosts` do not need the manifests.
    uploaded = set(own_wheel.package_files(ROOT / "dios"))
    packed = {name for name in names if name.startswith("dios/") and not name.startswith(DEPLOY)}
    require(packed == uploaded, f"`dios up` would upload other files: {sorted(packed ^ uploaded)[:5]}")


def check_source() -> None:
    """The archive has what is needed to build, deploy and read, and no suites."""
    step("the contents of the source archive")
    with tarfile.open(SOURCE) as archive:
        tops = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    require(
        tops == IN_SOURCE | OF_FORMAT, f"the archive has {sorted(tops ^ (IN_SOURCE | OF_FORMAT))} wrongly"
    )


# -- dist-test ----------------------------------------------------------------------------------------
def installed(folder: Path, *extras: str) -> Path:
    """Install the wheel with its dependencies into a new environment; return the environment."""
    require(WHEEL.exists(), f"there is no {WHEEL.name}: run make dist first")
    environment = folder / "environment"
    venv.create(environment, with_pip=True)
    step(f"pip install {WHEEL.name}[{','.join(extras)}]")
    run(environment / "bin" / "pip", "install", "--quiet", f"{WHEEL}[{','.join(extras)}]")
    return environment


def follow(environment: Path, folder: Path) -> None:
    """Type the README's commands and programs in a new home."""
    folder.chmod(0o755)
    (folder / "home").mkdir()
    user = Person(folder / "home")
    user.environment["PATH"] = f"{environment}/bin:/usr/local/bin:/usr/bin:/bin"
    del user.environment["DIOS_COORDINATOR"]
    del user.environment["DIOS_ACCEPT_WEAKER_SANDBOX"]

    def types(script: str, title: str) -> str:
        step(title)
        done = user.pastes(script)
        require(done.returncode == 0, f"{title}: status {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    require(types("dios --version", "dios --version") == f"dios {VERSION}\n", "another version")
    location = types("python -c 'import dios; print(dios.__file__)'", "the package that is imported")
    require(location.startswith(str(environment)), f"imported from {location}")
    doctor = json.loads(types("dios doctor --json || test $? = 1", "dios doctor"))
    step(f"tasks are confined here: {doctor['confined']}")
    try:
        step("the README, in its order")
        type_page(user, (ROOT / "README.md").read_text())
    finally:
        user.pastes("dios down; dios-node stop")


def try_package() -> None:
    """Install the wheel into a new environment, and follow the README."""
    with tempfile.TemporaryDirectory(prefix="dios-package-") as name:
        follow(installed(Path(name), "cluster", "fsspec", "data"), Path(name))


# -- sbom ---------------------------------------------------------------------------------------------
def list_packages() -> None:
    """Write the list of all packages of an environment with the extra ``cluster``."""
    target = PACKAGES
    with tempfile.TemporaryDirectory(prefix="dios-package-") as name:
        environment = installed(Path(name), "cluster")
        # The environment's own tools are no part of the product.
        run(environment / "bin" / "pip", "uninstall", "--quiet", "--yes", "setuptools", "pip")
        step("cyclonedx-py environment")
        run(
            *(sys.executable, "-m", "cyclonedx_py", "environment", "--pyproject", "pyproject.toml"),
            *("--mc-type", "application", "--output-reproducible", "--validate", "--output-file", target),
            environment / "bin" / "python",
        )
    told = json.loads(target.read_text())
    names = {component["name"] for component in told["components"]}
    require({"msgspec", "lmdb", "cryptography", "numpy", "numba"} <= names, f"the list has {sorted(names)}")
    require(told["metadata"]["component"]["version"] == VERSION, "the list is of another version")
    step(f"dist/{target.name}: {len(names)} packages, {told['bomFormat']} {told['specVersion']}")


# -- release ------------------------------------------------------------------------------------------
def sign(key: Path | None) -> None:
    """Write the hashes of the files of the release; with a key, sign them by ssh-keygen."""
    files = (SOURCE, WHEEL, PACKAGES)
    missing = [path.name for path in files if not path.exists()]
    require(not missing, f"dist/ has no {', '.join(missing)}: run make dist and make sbom first")
    hashes = DIST / HASHES
    lines = (f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
    hashes.write_text("".join(lines))
    (DIST / SIGNATURE).unlink(missing_ok=True)
    if key is None:
        step(f"dist/{HASHES} is not signed: give the key that signs releases, KEY=~/.ssh/id_ed25519")
        return
    run("ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", NAMESPACE, hashes)
    words = ("-n", NAMESPACE, "-s", str(DIST / SIGNATURE))
    step(run("ssh-keygen", "-Y", "check-novalidate", *words, stdin=hashes.read_text()).strip())


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="make dist", description=__doc__)
    works: dict[str, Callable[[], None]] = {
        "dist": build,
        "try": try_package,
        "sbom": list_packages,
        "release": lambda: sign(chosen.key),
    }
    parser.add_argument("work", choices=works)
    parser.add_argument("--key", type=Path)
    chosen = parser.parse_args()
    try:
        works[chosen.work]()
    except FailedError as error:
        step(f"FAILED: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

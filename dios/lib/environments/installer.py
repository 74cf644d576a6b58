"""The program that installs packages: pip, which can change one folder and execute no program.

``python -I -m dios.lib.environments.installer`` reads an ``Order`` from its standard input. Nobody
has read the wheels. pip only unpacks them, and this process could not build a package from source, because
Landlock lets it start no program. Without an index it has no network either.
"""

from __future__ import annotations

import compileall
import os
import py_compile
import runpy
import shutil
import signal
import sys
from pathlib import Path
from typing import Final

import msgspec

from dios.host.confinement import landlock, linux_calls, privileges
from dios.host.confinement.view import ENVIRONMENT, NULL

PACKAGES: Final = "packages"
REPORT: Final = "report.json"
REQUIREMENTS: Final = "requirements.txt"

CANNOT_CONFINE: Final = 90
"""The exit status if this machine has no Landlock."""

_TEMPORARY: Final = "temporary"
_ORDER_BYTES_MAX: Final = 4 * 1024 * 1024


class Order(msgspec.Struct, frozen=True):
    """The work of the program: to install the requirements in ``folder``, from an index or from wheels."""

    folder: str
    wheels: str
    parent: int


def confine(folder: str, *, with_network: bool) -> None:
    """Let this process change files below ``folder`` alone, and execute none. Raise ``OSError``."""
    rules = landlock.ruleset(["/"], [folder], devices=[NULL], with_network=with_network)
    privileges.no_new_privileges()
    landlock.restrict_self(rules)
    os.close(rules)


def arguments(order: Order) -> list[str]:
    """Return the command line of pip."""
    place = Path(order.folder)
    source = ["--isolated", "--no-index", "--find-links", order.wheels] if order.wheels else []
    return [
        "pip",
        "install",
        *source,
        "--target",
        str(place / PACKAGES),
        "--report",
        str(place / REPORT),
        "--only-binary",
        ":all:",
        "--no-compile",
        "--no-cache-dir",
        "--no-input",
        "--disable-pip-version-check",
        "--progress-bar",
        "off",
        "--quiet",
        "--requirement",
        str(place / REQUIREMENTS),
    ]


def _install(order: Order) -> int:
    temporary = Path(order.folder, _TEMPORARY)
    temporary.mkdir()
    os.environ.update(
        {"TMPDIR": str(temporary), "HOME": str(temporary)} if order.wheels else {"TMPDIR": str(temporary)}
    )
    sys.argv[:] = arguments(order)
    try:
        runpy.run_module("pip", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code not in {None, 0}:
            return end.code if isinstance(end.code, int) else 1
    packages = Path(order.folder, PACKAGES)
    # No task executes a program of an environment.
    shutil.rmtree(packages / "bin", ignore_errors=True)
    # Tasks cannot write compiled modules. The times of their sources are not kept.
    compileall.compile_dir(
        packages,
        quiet=2,
        stripdir=str(packages),
        prependdir=ENVIRONMENT,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    return 0


def main() -> int:
    """Install as the order on standard input says, and return the exit status."""
    order = msgspec.json.decode(sys.stdin.buffer.read(_ORDER_BYTES_MAX), type=Order)
    linux_calls.prctl(linux_calls.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != order.parent:
        return 1
    try:
        confine(order.folder, with_network=not order.wheels)
    except OSError as error:
        sys.stderr.write(f"{linux_calls.describe(error)}\n")
        return CANNOT_CONFINE
    return _install(order)


if __name__ == "__main__":
    sys.exit(main())

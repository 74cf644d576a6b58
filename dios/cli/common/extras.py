"""The error of a command that needs an optional dependency which is not installed.

Commands import such dependencies inside of ``needing_extra``.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator, Mapping
from typing import ClassVar, Final

from dios.errors import Code, DiosError
from dios.installation import extra_command

_PACKAGES: Final[Mapping[str, frozenset[str]]] = {
    "cluster": frozenset({"numpy", "numba"}),
    "mcp": frozenset({"mcp"}),
    "serve": frozenset({"h11"}),
    "web": frozenset({"nicegui", "fastapi", "uvicorn"}),
    "metrics": frozenset({"prometheus_client"}),
    "tui": frozenset({"textual"}),
    "jupyter": frozenset({"ipykernel", "jupyter_client"}),
}
"""The packages of each extra that commands need."""


def missing_extra(extra: str) -> str:
    """Return the missing packages of an extra and the command that installs them; empty if it is there."""
    missing = sorted(name for name in _PACKAGES[extra] if importlib.util.find_spec(name) is None)
    return f"{' and '.join(missing)} missing here: {extra_command(extra)}" if missing else ""


class MissingExtraError(DiosError):
    """The command needs packages that are not installed; the message says how to get them."""

    # Not a NotSupportedError, whose next step is to ask a node what its machine can enforce.
    code: ClassVar[Code] = Code.ENOSYS


@contextlib.contextmanager
def needing_extra(extra: str, feature: str) -> Iterator[None]:
    """Imports that need an extra of this package; ``feature`` says in the plural who needs it.

    Raises:
        MissingExtraError: a package of the extra is not installed; the message says how to get it.
    """
    packages = _PACKAGES[extra]
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in packages:
            raise
        raise MissingExtraError(
            f"{feature} need {error.name}, which is not installed: {extra_command(extra)}"
        ) from None

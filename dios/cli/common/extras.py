"""The error of a command that needs an optional dependency which is not installed.

Commands import such dependencies inside of ``needing_cluster``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import ClassVar, Final

from dios.errors import Code, DiosError

_CLUSTER: Final = frozenset({"numpy", "numba"})


class MissingExtraError(DiosError):
    """The command needs packages that are not installed; the message says how to get them."""

    # Not a NotSupportedError, whose next step is to ask a node what its machine can enforce.
    code: ClassVar[Code] = Code.ENOSYS


@contextlib.contextmanager
def needing_cluster(what: str) -> Iterator[None]:
    """Imports that need the extra ``cluster``; ``what`` says in the plural who needs it.

    Raises:
        MissingExtraError: a package of the extra is not installed; the message says how to get it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in _CLUSTER:
            raise
        raise MissingExtraError(
            f"{what} need {error.name}, which is not installed: pip install 'dios[cluster]'"
        ) from None

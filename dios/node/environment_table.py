"""The rows of the table ``environments``: the packages of tasks on this node, for ``dios env``."""

from __future__ import annotations

from msgspec.structs import replace

from dios.core.calls.tables import ENVIRONMENTS
from dios.host.environments.store import EnvironmentRecord, EnvironmentStore
from dios.limits import TEXT_BYTES_MAX
from dios.wire.environments import name_for
from dios.wire.messages import TableRows

_ROWS_MAX = 64


def completed(answer: TableRows, store: EnvironmentStore) -> TableRows:
    """Return the table ``environments`` with its rows from a position on; other answers as they are.

    The answer of the core has that position in ``following``.
    """
    if answer.table != ENVIRONMENTS:
        return answer
    start = answer.following
    environments = store.all
    rows = tuple(
        (
            name_for(environment.about.digest),
            environment.about.principal,
            environment.about.size,
            environment.about.files,
            environment.about.created_ns,
            environment.used_ns,
            int(store.has_task(environment.key)),
            _content(environment.about),
        )
        for environment in environments[start : start + _ROWS_MAX]
    )
    following = start + _ROWS_MAX if start + _ROWS_MAX < len(environments) else 0
    return replace(answer, rows=rows, following=following)


def _content(about: EnvironmentRecord) -> str:
    """Return the packages of an environment, or that it is an image."""
    if about.image is not None:
        return "(image)"
    return " ".join(f"{package.name}=={package.version}" for package in about.packages)[:TEXT_BYTES_MAX]

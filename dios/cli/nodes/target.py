"""The node of this machine that a command of ``dios-node`` is about, and the time that it has to answer."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from dios import limits
from dios.cli.common.options import option
from dios.client.locate import resolve_node
from dios.errors import TimeLimitError
from dios.node.settings import load

MAYBE_DATA: Final[Path | None] = option("--data DIR", "The node with this data directory.")


class _TooLate(BaseException):
    """The time is over; raised wherever the command is, and no handler of the client's errors takes it."""


@contextlib.contextmanager
def time_limit() -> Iterator[None]:
    """Raise TimeLimitError after NODE_ANSWER_MS_MAX, because even a hanging node accepts connections."""

    def give_up(number: int, frame: FrameType | None) -> NoReturn:
        del number, frame
        raise _TooLate

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, limits.NODE_ANSWER_MS_MAX / 1000)
    try:
        yield
    except _TooLate:
        limit_s = limits.NODE_ANSWER_MS_MAX // 1000
        raise TimeLimitError(f"the node did not answer within {limit_s} s") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


DATA_OPTION: Final[Path | None] = option(
    "--data DIR", "The node's data directory; default: the default node's."
)


def data_or_default(data: Path | None) -> Path:
    """Return the given data directory, else that of the default node."""
    return resolve_node(None).resolve().parent if data is None else data


def socket_of(data: Path | None, node: str | None) -> Path:
    """Return the socket of the node that the command is about."""
    if data is not None:
        return load(data).socket
    return resolve_node(node)

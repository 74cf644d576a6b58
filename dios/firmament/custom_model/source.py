"""Reads the file of a cost model. It loads no numeric code, because a command only sends the text."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dios.errors import InvalidError
from dios.limits import SCHED_MODEL_BYTES_MAX

SUFFIX: Final = ".py"
"""A model whose name ends so is a file, and not one of the catalogue."""


def read_source(name: str) -> str:
    """Return the text of a file. Raise InvalidError if it cannot be read, or is too long."""
    try:
        with Path(name).open("rb") as file:
            data = file.read(SCHED_MODEL_BYTES_MAX + 1)
        text = data.decode()
    except OSError as error:
        raise InvalidError(f"cannot read {name}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidError(f"{name} is no text in UTF-8") from None
    if len(data) > SCHED_MODEL_BYTES_MAX:
        raise InvalidError(f"{name} is too long: a cost model has at most {SCHED_MODEL_BYTES_MAX:,} bytes")
    return text

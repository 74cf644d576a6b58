"""Decoding bytes that a program, a disk or another node may have made: any others are one error."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from dios.errors import DamagedError, DiosError

T = TypeVar("T")


def decoded(
    decode: Callable[[bytes], T], data: bytes, failure: str, error: type[DiosError] = DamagedError
) -> T:
    """Return the decoded value, or raise ``error`` with the failure and its reason."""
    try:
        return decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as reason:
        raise error(f"{failure}: {reason}") from None

"""The text form of names for users, files and the command line, and the fingerprints shown instead of names.

The text of a name is a secret like the name itself, so that no message of this module repeats any of it.
Logs and displays show fingerprints.

The form is bech32m's (BIP 350) with the prefix ``dios``: ``dios1``, 52 digits of five bits, and a checksum of
six digits. The checksum finds every error in up to four characters, and thus every single mistyped
character and every two swapped characters. Letters that look alike are not digits at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from blake3 import blake3

from dios.errors import InvalidError
from dios.ids import Name
from dios.limits import NAME_BYTES

PREFIX: Final = "dios1"

_DIGITS: Final = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
_VALUE_OF: Final = {digit: value for value, digit in enumerate(_DIGITS)}
_GENERATOR: Final = (0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)
_TARGET: Final = 0x2BC830A3
_CHECKSUM_DIGITS: Final = 6
_NAME_DIGITS: Final = (NAME_BYTES * 8 + 4) // 5
_PADDING_BITS: Final = _NAME_DIGITS * 5 - NAME_BYTES * 8
_TEXT_LENGTH: Final = len(PREFIX) + _NAME_DIGITS + _CHECKSUM_DIGITS

_FINGERPRINT_DOMAIN: Final = b"dios fingerprint\0"
_FINGERPRINT_BYTES: Final = 6


def _remainder(values: Iterable[int], start: int = 1) -> int:
    """Divide the polynomial of ``values`` by bech32's generator; ``start`` is the remainder before them."""
    state = start
    for value in values:
        top = state >> 25
        state = (state & 0x1FFFFFF) << 5 ^ value
        for bit, term in enumerate(_GENERATOR):
            if top >> bit & 1:
                state ^= term
    return state


def _expanded(prefix: str) -> list[int]:
    """Return the prefix as the checksum uses it: high bits, a zero, low bits."""
    codes = prefix.encode("ascii")
    return [code >> 5 for code in codes] + [0] + [code & 31 for code in codes]


# The state of the checksum after the prefix is constant.
_AFTER_PREFIX: Final = _remainder(_expanded(PREFIX[:-1]))


def format_name(name: bytes) -> str:
    """Return the 32 bytes of ``name`` as 63 characters (§4.3); InvalidError for any other length."""
    if len(name) != NAME_BYTES:
        raise InvalidError(f"a name has {NAME_BYTES} bytes, not {len(name)}")
    number = int.from_bytes(name, "big") << _PADDING_BITS
    values = [number >> shift & 31 for shift in range((_NAME_DIGITS - 1) * 5, -1, -5)]
    check = _remainder([*values, *(0,) * _CHECKSUM_DIGITS], _AFTER_PREFIX) ^ _TARGET
    values += [check >> shift & 31 for shift in range((_CHECKSUM_DIGITS - 1) * 5, -1, -5)]
    return PREFIX + "".join(_DIGITS[value] for value in values)


def parse_name(text: str) -> Name:
    """Read a name that ``format_name`` wrote, in small or capital letters, with spaces around it.

    Raises InvalidError for text that is not a name. The message gives the fault and its place, and repeats
    nothing of the text.
    """
    lowered = text.strip().lower()
    if not lowered.startswith(PREFIX):
        raise InvalidError(f"this is not a name: a name begins with {PREFIX!r}")
    if len(lowered) != _TEXT_LENGTH:
        raise InvalidError(
            f"a name has {_TEXT_LENGTH} characters, this text has {len(lowered)}. Copy the whole name."
        )
    values: list[int] = []
    for place, digit in enumerate(lowered[len(PREFIX) :], start=len(PREFIX) + 1):
        value = _VALUE_OF.get(digit)
        if value is None:
            raise InvalidError(
                f"character {place} of the name cannot occur in a name. Correct the mistyped character."
            )
        values.append(value)
    if _remainder(values, _AFTER_PREFIX) != _TARGET:
        raise InvalidError("the checksum of the name does not match: at least one character is mistyped")
    number = 0
    for value in values[:_NAME_DIGITS]:
        number = number << 5 | value
    if number & (1 << _PADDING_BITS) - 1:
        raise InvalidError("the last digit of the name has bits that no name has: dios did not write it")
    return Name((number >> _PADDING_BITS).to_bytes(NAME_BYTES, "big"))


def fingerprint(name: bytes) -> str:
    """Return twelve hexadecimal digits that identify ``name`` where the name itself must not be shown.

    The function is one-way: 48 bits of a tagged BLAKE3 digest distinguish names and do not reveal them.
    """
    return blake3(_FINGERPRINT_DOMAIN + name).hexdigest(length=_FINGERPRINT_BYTES)

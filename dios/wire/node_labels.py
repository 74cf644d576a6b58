"""Labels of nodes as one text, ``gpu=yes,ssd=no``, with which they travel in rows about nodes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from dios import limits
from dios.errors import InvalidError
from dios.wire.types import Operator

RACK: Final = "rack"
"""The label that is the node's fault domain."""

RACK_LINK: Final = "rack-link"
"""The label with the bandwidth of the links of a node's rack, in each direction and second."""
POD: Final = "pod"
"""The label that names the pod of a node's rack: the racks below one switch."""
POD_LINK: Final = "pod-link"
"""The label with the bandwidth of the links of a node's pod, in each direction and second."""

NO_LIMBO: Final = "no limbo tasks of other nodes"
"""The label by which a scheduler knows the nodes without ``limbo_from_nodes``. Operators give none with
spaces.
"""

_RATE: Final = re.compile(r"([0-9]{1,12})(B|KiB|MiB|GiB)")
_RATE_UNITS: Final = {"B": 1, "KiB": limits.KIB, "MiB": limits.MIB, "GiB": limits.GIB}

_RACK: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_RESERVED: Final = frozenset({"node"})


def satisfies(labels: Mapping[str, str], key: str, operator: Operator, value: str) -> bool:
    """Return True if a node with these labels satisfies a condition on one of them."""
    has = labels.get(key)
    if operator is Operator.PRESENT:
        return has is not None
    if operator is Operator.ABSENT:
        return has is None
    if operator is Operator.EQUAL:
        return has == value
    return has != value


def text_of(labels: Iterable[tuple[str, str]]) -> str:
    """Return labels as text."""
    return ",".join(f"{key}={value}" for key, value in labels)


def labels_of(text: str) -> dict[str, str]:
    """Return the labels of a text of another node; parts that are none are left out."""
    pairs = (part.partition("=") for part in text.split(",")[: limits.NODE_LABELS_MAX])
    return {key: value for key, equals, value in pairs if key and equals}


def changed(
    rack: str, labels: Iterable[tuple[str, str]], changes: Mapping[str, str | None]
) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return rack and labels after changes, in which None removes a label. Raise InvalidError."""
    merged = dict(labels)
    for key, value in changes.items():
        check(key, value or "")
        if key == RACK:
            rack = value or ""
        elif value is None:
            merged.pop(key, None)
        else:
            merged[key] = value
    after = tuple(sorted(merged.items()))
    if len(after) > limits.NODE_LABELS_MAX or len(text_of(after)) > limits.NODE_LABELS_CHARS_MAX:
        raise InvalidError(
            f"a node has at most {limits.NODE_LABELS_MAX} labels with {limits.NODE_LABELS_CHARS_MAX} "
            "characters in all. Remove some with `dios node label NAME KEY-`."
        )
    return rack, after


def rate_of(labels: Mapping[str, str], key: str) -> int | None:
    """Return the bytes per second that a label gives; None without it, and 0 if it cannot be read."""
    if key not in labels:
        return None
    match = _RATE.fullmatch(labels[key])
    return int(match[1]) * _RATE_UNITS[match[2]] if match else 0


def check(key: str, value: str) -> None:
    """Raise InvalidError unless a label can have this key and value."""
    if key in {RACK_LINK, POD_LINK} and value and _RATE.fullmatch(value) is None:
        raise InvalidError(
            f"the label {key} must be bytes per second, like 800KiB, 100MiB or 1GiB, and not {value[:80]!r}"
        )
    if key in _RESERVED:
        raise InvalidError(f"the label {key!r} is the node's name, which cannot be changed")
    words = (key, value)
    if key == RACK and value and _RACK.fullmatch(value) is None:
        raise InvalidError(
            f"{value[:80]!r} cannot be the name of a rack. Use letters, digits, '.', '_' or '-', and begin "
            "with a letter or digit."
        )
    if (
        not key
        or key != key.strip()
        or any(letter in word for word in words for letter in ",=")
        or not all(word.isprintable() for word in words)
        or any(len(word.encode(errors="replace")) > limits.NODE_NAME_BYTES_MAX for word in words)
    ):
        raise InvalidError(
            f"{key[:80]}={value[:80]} cannot be a label. Use words of at most {limits.NODE_NAME_BYTES_MAX} "
            "bytes without ',' and '=', like gpu=yes."
        )

"""Secrecy labels: the sets of tags that say where bytes may go (thesis §9.1.3, ADR 0099).

A label is a sorted tuple of tags with their owners. This module has the operations on labels; the rules
are in ``dios.core.calls.flows``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from dios import limits
from dios.errors import LimitError

Label: TypeAlias = tuple[str, ...]

PUBLIC: Final[Label] = ()
"""The label of what may go everywhere."""


def union(*labels: Label) -> Label:
    """Return the label with the tags of all labels. Raise LimitError if it would have too many."""
    if sum(map(bool, labels)) == 0:
        return PUBLIC
    tags = tuple(sorted({tag for label in labels for tag in label}))
    if len(tags) > limits.SECRECY_TAGS_MAX:
        raise LimitError(
            f"a secrecy label has at most {limits.SECRECY_TAGS_MAX} tags, and this would have {len(tags)}. "
            "Read the objects in several tasks."
        )
    return tags


def missing(label: Label, other: Label) -> Label:
    """Return the tags of a label that the other one has not."""
    return tuple(tag for tag in label if tag not in other) if label else PUBLIC


def common(label: Label, other: Label | None) -> Label:
    """Return the tags that both have; None has all tags."""
    return label if other is None else tuple(tag for tag in label if tag in other)


def normal(tags: Iterable[str], principal: str) -> Label:
    """Return tags as a label: sorted, each once, and the principal as the owner of tags without one."""
    return union(tuple(tag if "/" in tag else f"{principal}/{tag}" for tag in tags))


def is_owned(tag: str, principal: str) -> bool:
    """Return True if the principal is the owner of the tag."""
    return bool(principal) and tag.startswith(f"{principal}/")

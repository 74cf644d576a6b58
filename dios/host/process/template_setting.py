"""A template as the node's settings describe it; free of everything that an event loop needs."""

from __future__ import annotations

from typing import Final, NamedTuple

from dios.limits import MIB

TEMPLATES_MAX: Final = 16
"""The templates of one node. Each that is used has a process, or one for each user."""

TEMPLATE_MEMORY_BYTES_DEFAULT: Final = 1024 * MIB
TEMPLATE_NAME_CHARS_MAX: Final = 64


class TemplateSetting(NamedTuple):
    """A named set of modules, and the memory that its process may use.

    Each user who starts tasks from it has a process of their own, unless it ``is_public``.
    """

    name: str
    modules: tuple[str, ...]
    memory_bytes: int = TEMPLATE_MEMORY_BYTES_DEFAULT
    is_public: bool = False

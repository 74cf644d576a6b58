"""The table of a task's references."""

from __future__ import annotations

import pytest

from dios import limits
from dios.core.model.records import ReferenceTable
from dios.errors import LimitError


def test_a_full_table_is_a_limit_and_is_named() -> None:
    """A reference too many is refused with the number of references and its bound, not as lack of memory."""
    table = ReferenceTable()
    table.require_room(limits.REFERENCES_PER_TASK_MAX)
    with pytest.raises(LimitError, match=f"at most {limits.REFERENCES_PER_TASK_MAX} references"):
        table.require_room(limits.REFERENCES_PER_TASK_MAX + 1)

"""The labels of machines, and the machines that satisfy constraints (thesis §6.3.1)."""

from __future__ import annotations

import numpy as np

from dios.firmament.cluster.columns import ABSENT, Flags, Ints, NameTable
from dios.firmament.descriptors import Constraint
from dios.wire.types import Operator


class LabelIndex:
    """One column of value numbers for each label key, over the rows of the table of resources."""

    def __init__(self) -> None:
        self._values = NameTable()
        self._columns: dict[str, Ints] = {}

    def add(self, row: int, labels: dict[str, str]) -> None:
        """Set the labels of a machine; those of an earlier machine in this row are removed."""
        self.remove(row)
        for key, value in labels.items():
            column = self._columns.get(key)
            if column is None:
                column = self._columns[key] = np.full(max(16, row + 1), ABSENT, np.int64)
            if row >= len(column):
                longer = np.full(2 * row + 1, ABSENT, np.int64)
                longer[: len(column)] = column
                column = self._columns[key] = longer
            column[row] = self._values.number(value)

    def remove(self, row: int) -> None:
        """Remove a machine."""
        for column in self._columns.values():
            if row < len(column):
                column[row] = ABSENT

    def always_holds(self, constraint: Constraint) -> bool:
        """Return True if every machine satisfies the constraint because no machine has its label."""
        if constraint.operator is not Operator.ABSENT:
            return False
        column = self._columns.get(constraint.key)
        return column is None or bool((column == ABSENT).all())

    def matches(self, constraint: Constraint, size: int) -> Flags:
        """Return, for rows 0 to size - 1, where a machine in that row satisfies the constraint."""
        column = np.full(size, ABSENT, np.int64)
        known = self._columns.get(constraint.key)
        if known is not None:
            length = min(size, len(known))
            column[:length] = known[:length]
        present: Flags = column != ABSENT
        if constraint.operator in {Operator.PRESENT, Operator.ABSENT}:
            return present if constraint.operator == Operator.PRESENT else ~present
        equal: Flags = column == self._values.number(constraint.value)
        return equal if constraint.operator == Operator.EQUAL else ~equal

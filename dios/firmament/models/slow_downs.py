"""Measured slow-downs between the four classes of interference, as a parameter of CoCo and Whare-Map.

The parameter ``slow_downs`` has 16 whole numbers: for a turtle, a sheep, a rabbit and a devil, the run time
next to a turtle, a sheep, a rabbit and a devil, in percent of the run time alone. ``dios lab calibrate``
measures them. With at most three digits each they fit into a parameter of a cost model.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from dios.errors import InvalidError
from dios.firmament.cluster.columns import Floats
from dios.firmament.descriptors import Interference
from dios.firmament.models.cost_terms import BadModelError

CLASSES: Final = len(Interference)
PERCENT_MAX: Final = 999
"""The largest number of the parameter, about ten times the run time alone."""


def parse_slow_downs(model: str, text: str) -> Floats | None:
    """Return the matrix of the parameter ``slow_downs``, shape (4, 4), or None if it is empty.

    Raises:
        BadModelError: there are not 16 whole numbers from 1 to ``PERCENT_MAX``.
    """
    if not text.strip():
        return None
    try:
        percents = [int(word) for word in text.split(",")]
    except ValueError:
        percents = []
    if len(percents) != CLASSES**2 or not all(1 <= percent <= PERCENT_MAX for percent in percents):
        raise BadModelError(
            f"model {model}: slow_downs is {text!r}; give {CLASSES**2} whole numbers from 1 to "
            f"{PERCENT_MAX}, separated by commas, as `dios lab calibrate` prints them"
        )
    return np.array(percents, np.float64).reshape(CLASSES, CLASSES) / 100


def slow_downs_text(matrix: list[list[float]]) -> str:
    """Return a matrix as the text of the parameter: run times next to others, divided by those alone.

    Raises:
        InvalidError: the matrix does not have four rows of four numbers.
    """
    if len(matrix) != CLASSES or any(len(row) != CLASSES for row in matrix):
        raise InvalidError(f"a matrix of slow-downs has {CLASSES} rows of {CLASSES} numbers")
    return ",".join(str(min(max(round(100 * value), 1), PERCENT_MAX)) for row in matrix for value in row)


def excess(slow_downs: Floats) -> Floats:
    """Return the share by which a neighbour (column) lengthens a run time (row), at least 0."""
    surplus: Floats = np.maximum(slow_downs - 1.0, 0.0)
    return surplus


def penalties_of(slow_downs: Floats) -> Floats:
    """Return CoCo's penalties, 0 to 1, symmetric: 1 if one of the two takes twice as long or longer."""
    penalties: Floats = np.minimum(1.0, excess(np.maximum(slow_downs, slow_downs.T)))
    return penalties

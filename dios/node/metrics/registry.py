"""All metrics, and the values of all that a caller may see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from dios.node.metrics.family import MetricForm, Reading
from dios.node.metrics.of_functions import FUNCTION_FAMILIES, of_functions
from dios.node.metrics.of_node import NODE_FAMILIES, of_node
from dios.node.metrics.of_scheduler import SCHEDULER_FAMILIES, AskedNode, of_scheduler

FAMILIES: Final[Mapping[str, MetricForm]] = {
    **NODE_FAMILIES,
    **SCHEDULER_FAMILIES,
    **FUNCTION_FAMILIES,
}
"""All metrics by name. A page of ``docs`` lists them, and a test compares the two."""


class MeasuredNode(AskedNode, Protocol):
    """The calls of a client that are needed here."""

    def read_table(self, name: str) -> list[dict[str, int | str]]:
        """Return a table of the node."""
        ...


def read_all(node: MeasuredNode) -> list[Reading]:
    """Return all metrics that the caller may see.

    Raises:
        NotPermittedError: the caller is neither the node's own user nor root.
    """
    return [*of_node(node.read_table("metrics")), *of_scheduler(node), *of_functions()]

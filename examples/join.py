"""A join of two tables as a MapReduce job: people and their orders, by the first column of each table.

Run it with ``mapreduce.run(node, "examples/join.py", {"people": "people.tsv", "orders": "orders.tsv"})``: the
labels of the inputs are the names of the tables. See docs/libraries.md#mapreduce.
"""

from __future__ import annotations

from collections.abc import Iterator

text = True


def map(line: str, label: str) -> Iterator[tuple[str, list[str]]]:  # noqa: A001 - the word for it
    """Emit a row under its key, marked with its table."""
    key, *row = line.split("\t")
    if row:
        yield key, [label, *row]


def reduce(key: str, rows: list[list[str]]) -> list[list[str]] | None:
    """Return each person with each of their orders; None for a key that only one table has."""
    del key
    people = [row for label, *row in rows if label == "people"]
    orders = [row for label, *row in rows if label == "orders"]
    return [person + order for person in people for order in orders] or None

"""Word count as a MapReduce job: the user's functions of Listing 5.1 in the thesis.

Run it with ``mapreduce.run(node, "examples/wordcount.py", inputs=["texts/"])``; see docs/libraries.md.
"""

from __future__ import annotations

from collections.abc import Iterator


def map(line: bytes) -> Iterator[tuple[bytes, int]]:  # noqa: A001 - the name of Listing 5.1
    """Emit one pair for each word of a line."""
    for word in line.split():
        yield word.upper(), 1


combine = reduce = sum

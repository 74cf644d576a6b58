"""An inverted index as a MapReduce job: for each word, the sorted labels of the documents that contain it.

Run it with ``mapreduce.run(node, "examples/inverted_index.py", inputs=["texts/"])``; see docs/libraries.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

text = True
WORD = re.compile(r"[^\W\d_]+")


def map(line: str, label: str) -> Iterator[tuple[str, list[str]]]:  # noqa: A001 - the word for it
    """Emit the document's label for each different word of a line."""
    for word in sorted(set(WORD.findall(line.lower()))):
        yield word, [label]


def combine(word: str, lists: list[list[str]]) -> list[str]:
    """Merge several lists into one sorted list without duplicates."""
    del word
    return sorted({label for labels in lists for label in labels})


reduce = combine

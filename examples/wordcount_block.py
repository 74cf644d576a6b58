"""Word count by whole blocks: the function receives megabytes at a time, and may use any library.

Run it with ``mapreduce.run(node, "examples/wordcount_block.py", inputs=["texts/"])``; see docs/libraries.md.
"""

from __future__ import annotations

from collections import Counter


def map_block(block: memoryview) -> Counter[bytes]:
    """Count the words of a block."""
    return Counter(bytes(block).upper().split())


combine = reduce = sum

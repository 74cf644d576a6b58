"""The text of the thesis' word count: 51.2 million five-letter words, a million of them different (§5.3).

The same seed gives the same bytes: ``python -m labs.benchmarks.metis words.txt``.
"""

from __future__ import annotations

import argparse
import random
from array import array
from pathlib import Path
from typing import Final

WORDS: Final = 51_200_000
UNIQUE: Final = 1_000_000
LETTERS: Final = 5
WORDS_IN_LINE: Final = 10
SEED: Final = 20150601

_ALPHABET: Final = b"abcdefghijklmnopqrstuvwxyz"
_BATCH: Final = 200_000


def vocabulary(rng: random.Random, unique: int) -> list[bytes]:
    """Return ``unique`` different words in random order."""
    words: dict[bytes, None] = {}
    while len(words) < unique:
        letters = bytes(rng.choices(_ALPHABET, k=LETTERS * (unique - len(words))))
        words.update((letters[start : start + LETTERS], None) for start in range(0, len(letters), LETTERS))
    return list(words)


def write_words(path: Path, *, words: int = WORDS, unique: int = UNIQUE, seed: int = SEED) -> int:
    """Write ``words`` words drawn evenly from ``unique`` words, ten per line; return the number of bytes.

    The file is written atomically. An existing file of the right size is not changed.
    """
    size = words * (LETTERS + 1)
    if path.exists() and path.stat().st_size == size:
        return size
    rng = random.Random(seed)  # noqa: S311 - data that anybody can make again, no secret
    known = vocabulary(rng, min(unique, len(_ALPHABET) ** LETTERS // 2))
    count = len(known)
    unfinished = path.with_suffix(".unfinished")
    with unfinished.open("wb") as file:
        left = words
        while left:
            batch = min(left, _BATCH)
            drawn = [known[number % count] for number in array("I", rng.randbytes(4 * batch))]
            lines = (
                b" ".join(drawn[start : start + WORDS_IN_LINE]) for start in range(0, batch, WORDS_IN_LINE)
            )
            file.write(b"\n".join(lines) + b"\n")
            left -= batch
    unfinished.rename(path)
    return size


def main() -> None:
    """Write the file named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, help="the file to write")
    parser.add_argument("--words", type=int, default=WORDS, help=f"number of words (default {WORDS:,})")
    parser.add_argument("--unique", type=int, default=UNIQUE, help=f"number of different words ({UNIQUE:,})")
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args()
    size = write_words(options.path, words=options.words, unique=options.unique, seed=options.seed)
    print(f"{options.path}: {size:,} bytes")


if __name__ == "__main__":
    main()

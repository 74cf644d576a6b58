"""A small job to test a cluster: count primes in slices, store each count in an object, and add them up."""  # noqa: INP001 - the image runs it by its path

from __future__ import annotations

import sys

import dios

SLICES = 8


def primes_below(stop: int, start: int) -> int:
    """Return the number of primes from ``start`` to below ``stop``."""
    return sum(
        all(number % divisor for divisor in range(2, int(number**0.5) + 1))
        for number in range(max(2, start), stop)
    )


def main(limit: int) -> None:
    """Count the primes below ``limit``."""
    step = -(-limit // SLICES)
    with dios.connect() as node:
        counts = [
            node.create(
                dios.SHMEM_BLOB,
                data=primes_below(min(limit, start + step), start).to_bytes(8, "little"),
            )
            for start in range(0, limit, step)
        ]
        total = sum(int.from_bytes(count.read_bytes(), "little") for count in counts)
    sys.stdout.write(f"{total} primes below {limit}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)

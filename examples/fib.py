"""fib(10) as in Listing 9.1 of the thesis: each call of ``fib`` is a separate sandboxed task."""

import dios
from dios.lib.spawn import Spawner, spawn


def fib(n: int) -> int:
    """Return the n-th Fibonacci number."""
    if n < 2:
        return n
    first, second = spawn(fib, n - 2), spawn(fib, n - 1)
    return first.result() + second.result()


if __name__ == "__main__":
    with dios.connect() as node, Spawner(node) as spawner:
        print("fib(10) =", spawner.spawn(fib, 10).result())

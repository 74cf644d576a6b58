"""fib(15) by nested calls of an executor: a call that waits for others gives its place back.

It needs no running node. ``fib.py`` does the same with one sandboxed task for each call.
"""

import dios


def fib(n: int) -> int:
    """Return the n-th Fibonacci number; both numbers before it are calls of their own."""
    if n < 2:
        return n
    executor = dios.current_executor()
    first, second = executor.submit(fib, n - 2), executor.submit(fib, n - 1)
    return first.result() + second.result()


if __name__ == "__main__":
    with dios.Executor(2) as executor:
        print("fib(15) =", executor.submit(fib, 15).result())
        print(executor.stats().completed, "calls")

"""The interface of executors: map, futures, errors, arguments of many kinds."""

import asyncio
import concurrent.futures
import decimal
import fractions
import itertools
import math
import operator
import os
import re
import sys
import threading
import time
from datetime import date, datetime, timedelta, timezone
from pathlib import PurePosixPath

import numpy as np
from asking import answer, call, calls, make


class OwnError(Exception):
    """An exception with an attribute."""

    def __init__(self, reason):
        super().__init__(reason)
        self.reason = reason


class QuietError(OwnError, KeyError):
    """An exception with two bases."""


def fail(kind, *args):
    raise kind(*args)


def fail_on(n):
    if n == 3:
        raise OwnError(n)
    return n


def caught(*arguments):
    try:
        return call(*arguments)
    except Exception as error:
        return type(error).__name__, error.args, str(error)


def slow(n):
    time.sleep(0.2 if n == 0 else 0)
    return n


def sleep_long():
    time.sleep(0.7)
    return "late"


def echo(*args, **kwargs):
    return args, kwargs


def total(array):
    return float(array.sum())


def mean(frame):
    return {key: sum(values) / len(values) for key, values in frame.items()}


def fork_free():
    return threading.current_thread() is threading.main_thread()


def chain(executor, n):
    future = executor.submit(operator.add, n, 1)
    return executor.submit(operator.mul, future.result(60), 2).result(60)


def mapped(function, *items, workers=2, **options):
    with make(workers) as executor:
        return list(executor.map(function, *items, **options))


def map_stops():
    with make() as executor:
        results, seen = executor.map(fail_on, range(6)), []
        try:
            for value in results:
                seen.append(value)
        except OwnError as error:
            return seen, error.reason


def completed():
    with make(2) as executor:
        return sorted(future.result() for future in concurrent.futures.as_completed([executor.submit(slow, n) for n in range(5)], 60))


def waited():
    with make(2) as executor:
        done, rest = concurrent.futures.wait([executor.submit(slow, n) for n in range(4)], 60)
        return len(done), len(rest)


def first_exception():
    with make() as executor:
        futures = [executor.submit(fail_on, n) for n in (3, 1)]
        done, _ = concurrent.futures.wait(futures, 60, concurrent.futures.FIRST_EXCEPTION)
        return futures[0] in done


def timeout():
    with make() as executor:
        future = executor.submit(sleep_long)
        try:
            future.result(0.01)
        except concurrent.futures.TimeoutError:
            return future.result(60)


def map_timeout():
    with make() as executor:
        try:
            list(executor.map(slow, [0], timeout=0.001))
        except concurrent.futures.TimeoutError:
            return "timed out"


def cancelled():
    with make() as executor:
        futures = [executor.submit(sleep_long) for _ in range(40)]
        states = futures[-1].cancel(), futures[-1].cancelled()
        for future in futures[1:]:
            future.cancel()
        return states, futures[0].result(60)


def callback():
    values = []
    with make() as executor:
        executor.submit(operator.neg, 3).add_done_callback(lambda future: values.append(future.result()))
    return values


def after_shutdown():
    executor = make()
    executor.shutdown()
    try:
        executor.submit(len, "a")
    except RuntimeError:
        return "refused"


def in_loop():
    async def run():
        loop = asyncio.get_running_loop()
        return await asyncio.gather(*(loop.run_in_executor(executor, operator.neg, n) for n in range(3)))

    with make(2) as executor:
        return asyncio.run(run())


def from_threads():
    with make(2) as executor, concurrent.futures.ThreadPoolExecutor(3) as threads:
        return list(threads.map(lambda n: chain(executor, n), range(6)))


def unpicklable():
    with make() as executor:
        try:
            executor.submit(len, (n for n in range(3))).result(60)
        except Exception:
            return executor.submit(len, "abc").result(60)


def result_of_state():
    with make() as executor:
        future = executor.submit(len, "ab")
        future.result(60)
        return future.done(), future.running(), future.cancelled(), future.exception()


QUESTIONS = {
    "map": lambda: mapped(operator.neg, range(50)),
    "map with chunks": lambda: mapped(operator.neg, range(50), chunksize=7),
    "map of iterators": lambda: mapped(operator.add, iter(range(9)), itertools.count(1)),
    "map of nothing": lambda: mapped(operator.neg, []),
    "map of different lengths": lambda: mapped(operator.add, [1, 2, 3], [1]),
    "map of a generator": lambda: mapped(math.sqrt, (n * n for n in range(9))),
    "map of tuples": lambda: mapped(len, [(1,), (), (1, 2)]),
    "map keeps the order": lambda: mapped(slow, range(8)),
    "map stops at an exception": map_stops,
    "as completed": completed,
    "wait": waited,
    "wait for the first exception": first_exception,
    "timeout": timeout,
    "timeout of map": map_timeout,
    "cancel": cancelled,
    "callback": callback,
    "after shutdown": after_shutdown,
    "event loop": in_loop,
    "threads": from_threads,
    "an argument that cannot be pickled": unpicklable,
    "state of a future": result_of_state,
    "own exception": lambda: caught(fail, OwnError, "why"),
    "exception with two bases": lambda: caught(fail, QuietError, "why"),
    "key error": lambda: caught(fail, KeyError, "k"),
    "exception without text": lambda: caught(fail, ValueError),
    "os error": lambda: caught(fail, FileNotFoundError, 2, "no", "file"),
    "stop iteration": lambda: caught(fail, StopIteration, 1),
    "unicode error": lambda: caught(bytes.decode, b"\xff"),
    "division": lambda: caught(operator.truediv, 1, 0),
    "assertion": lambda: caught(fail, AssertionError, (1, 2)),
    "no such attribute": lambda: caught(getattr, [], "x")[0],
    "group of exceptions": lambda: caught(fail, ExceptionGroup, "g", [ValueError(1), KeyError(2)]) if sys.version_info >= (3, 11) else 0,
    "keywords": lambda: call(echo, 1, a=[2], b=(3, {"c": {4}})),
    "no arguments": lambda: call(echo),
    "large integers": lambda: call(pow, 3, 500),
    "special numbers": lambda: call(echo, math.inf, -0.0, 1e-320, 2j),
    "text of all kinds": lambda: call(echo, "", "ä\0\n", "\ud800", b"\xff", bytearray(b"a")),
    "times": lambda: call(echo, date(2024, 2, 29), datetime(2024, 1, 1, tzinfo=timezone.utc), timedelta(1, 2, 3)),
    "exact numbers": lambda: call(echo, decimal.Decimal("1.10"), fractions.Fraction(1, 3)),
    "paths": lambda: call(operator.truediv, PurePosixPath("a"), "b"),
    "ellipsis and none": lambda: call(echo, None, True),
    "a frozen set": lambda: call(echo, frozenset({1}), {2: {3: []}}),
    "a range": lambda: call(sum, range(10)),
    "a slice": lambda: call(operator.getitem, [1, 2, 3], slice(1, None)),
    "a pattern": lambda: call(re.compile("a+").findall, "caab"),
    "an array": lambda: call(total, np.arange(9.0).reshape(3, 3)),
    "a large array": lambda: call(total, np.ones(300_000)),
    "a large array comes back": lambda: call(np.cumsum, np.ones(200_000)).tolist()[-1],
    "an array of records": lambda: call(np.sort, np.array([(2, b"x"), (1, b"y")], dtype=[("a", "i4"), ("b", "S1")])).tolist(),
    "a dictionary of lists": lambda: call(mean, {"a": [1, 2], "b": [3]}),
    "large bytes": lambda: call(len, bytes(1_000_000)),
    "many arguments": lambda: len(call(echo, *range(2000))[0]),
    "the thread of a call": lambda: call(fork_free),
    "no process is forked here": lambda: call(os.getpid) != os.getpid(),
    "calls in turn": lambda: calls(operator.neg, *range(20)),
}

if __name__ == "__main__":
    answer(QUESTIONS)

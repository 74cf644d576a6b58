"""Globals, initializers, caches and locks of a script: the state that a worker keeps."""

import collections
import contextvars
import functools
import itertools
import logging
import random
import threading
from dataclasses import dataclass, field

from asking import answer, call, calls, make

value = 0
counter = 0
cache = {}
log = []
seen = set()
factor: int = 3
lock = threading.Lock()
relock = threading.RLock()
condition = threading.Condition()
local = threading.local()
variable = contextvars.ContextVar("variable", default=7)
numbers = itertools.count(5)
queue = collections.deque(maxlen=2)
logger = logging.getLogger(__name__)
rng = random.Random(3)
alias = cache
HANDLERS = {}


def handler(name):
    def add(function):
        HANDLERS[name] = function
        return function

    return add


@handler("double")
def double(x):
    return 2 * x


@handler("square")
def square(x):
    return x * x


def handle(name, x):
    return sorted(HANDLERS), HANDLERS[name](x), HANDLERS["double"] is double


def init(v):
    global value
    value = v


def init_indirect(v):
    globals()["value"] = v
    cache["v"] = v


def init_new(v):
    global created
    created = [v]


def read(n):
    return value * n


def read_created():
    created.append(1)
    return created


def read_by_dict(n):
    return globals()["value"] * n, cache.get("v")


def bump():
    global counter
    counter += 1
    return counter


def fill(k):
    cache[k] = 1
    return len(cache), len(alias), alias is cache


def append(k):
    log.append(k)
    seen.add(k)
    return len(log), sorted(seen)


def default(k, known=[]):
    known.append(k)
    return known


def shared_default(k, known=cache):
    known[k] = k
    return len(cache)


def locked(k):
    with lock, relock, condition:
        cache[k] = k
        return len(cache)


def from_local(k):
    local.seen = getattr(local, "seen", 0) + k
    return local.seen


def with_variable(k):
    before = variable.get()
    variable.set(before + k)
    return before


def take(_):
    return next(numbers)


def push(k):
    queue.append(k)
    return list(queue)


def drawn(_):
    return rng.random()


def log_name(_):
    return logger.name


def attribute(k):
    attribute.calls = getattr(attribute, "calls", 0) + k
    return attribute.calls


def make_counter():
    state = 0

    def count(k):
        nonlocal state
        state += k
        return state

    return count


count = make_counter()


def counted(k):
    return count(k)


@functools.lru_cache(maxsize=None)
def slow(x):
    cache[x] = cache.get(x, 0) + 1
    return cache[x]


def slow_info(x):
    slow(x), slow(x)
    return slow.cache_info().hits


def memo(function):
    known = {}

    @functools.wraps(function)
    def wrapper(x):
        if x not in known:
            known[x] = function(x)
        return known[x], len(known)

    return wrapper


@memo
def memoized(x):
    return x + 1


class Once:
    """A decorator that is a class."""

    def __init__(self, function):
        functools.update_wrapper(self, function)
        self.count = 0
        self.function = function

    def __call__(self, x):
        self.count += 1
        return self.function(x), self.count


@Once
def once(x):
    return -x


def use_once(x):
    return once(x)


@dataclass
class Settings:
    depth: int = 1
    names: list = field(default_factory=list)


settings = Settings()


def change_settings(k):
    settings.depth += k
    settings.names.append(k)
    return settings.depth, settings.names


class Registry:
    """A class with state of its own."""

    known = {}
    count = 0

    @classmethod
    def add(cls, k):
        cls.count += 1
        cls.known[k] = k
        return cls.count, len(cls.known), len(Registry.known)


def thread_in_call(k):
    threads = [threading.Thread(target=fill, args=(k + n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(cache)


def init_and_bump(v):
    init(v)
    bump()


def both(_):
    return value, counter


def init_fails():
    raise LookupError("no")


def broken():
    with make(initializer=init_fails) as executor:
        try:
            executor.submit(pow, 2, 3).result(60)
        except Exception as error:
            return isinstance(error, __import__("concurrent.futures", fromlist=["x"]).BrokenExecutor)


QUESTIONS = {
    "initializer": lambda: calls(read, 1, 2, initializer=init, initargs=(10,)),
    "initializer by map": lambda: list(make(initializer=init, initargs=(10,)).map(read, range(4))),
    "initializer by globals()": lambda: calls(read_by_dict, 1, 2, initializer=init_indirect, initargs=(4,)),
    "initializer makes a name": lambda: calls(read_created, (), (), initializer=init_new, initargs=(1,)),
    "initializer calls others": lambda: calls(both, 0, initializer=init_and_bump, initargs=(5,)),
    "initializer raises": broken,
    "initializer as partial": lambda: calls(read, 1, initializer=functools.partial(init, 6)),
    "counter": lambda: calls(bump, (), (), ()),
    "dictionary and alias": lambda: calls(fill, 1, 2, 2, 3),
    "list and set": lambda: calls(append, 1, 2, 1),
    "default argument": lambda: calls(default, 1, 2),
    "default argument that is a global": lambda: calls(shared_default, 1, 2),
    "locks": lambda: calls(locked, 1, 2),
    "thread local": lambda: calls(from_local, 1, 2),
    "context variable": lambda: calls(with_variable, 1, 1),
    "iterator": lambda: calls(take, 0, 0),
    "deque": lambda: calls(push, 1, 2, 3),
    "random generator": lambda: calls(drawn, 0, 0),
    "logger": lambda: calls(log_name, 0),
    "attribute of a function": lambda: calls(attribute, 1, 2),
    "closure": lambda: calls(counted, 1, 2),
    "lru_cache": lambda: calls(slow, 1, 1, 2),
    "lru_cache hits": lambda: calls(slow_info, 1, 2),
    "own cache": lambda: calls(memoized, 1, 2, 1),
    "decorator class": lambda: calls(use_once, 1, 2),
    "object": lambda: calls(change_settings, 1, 2),
    "class attributes": lambda: calls(Registry.add, 1, 1, 2),
    "threads in a call": lambda: calls(thread_in_call, 0),
    "registry of functions": lambda: calls(handle, ("double", 4), ("square", 4)),
    "fresh executors": lambda: [call(bump), call(bump)],
    "annotated global": lambda: call(eval, "factor", {"factor": factor}),
}

if __name__ == "__main__":
    answer(QUESTIONS)

"""Functions and classes of all kinds in a script, as calls and in arguments and results."""

from __future__ import annotations

import abc
import asyncio
import collections
import contextlib
import copy
import enum
import functools
import inspect
import operator
import pickle
import typing
from dataclasses import dataclass, field

from asking import answer, call, calls, make

T = typing.TypeVar("T")
Pair = collections.namedtuple("Pair", "left right")


class Triple(typing.NamedTuple):
    a: int
    b: int = 2

    def total(self):
        return self.a + self.b


class Color(enum.Enum):
    RED = 1
    GREEN = "g"

    def lower(self):
        return self.name.lower()


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 5


@dataclass(order=True)
class Item:
    price: float
    name: str = field(compare=False, default="")

    def __post_init__(self):
        self.price = float(self.price)


@dataclass(frozen=True)
class Frozen:
    inner: Item
    tags: tuple = ()


class Base(abc.ABC):
    @abc.abstractmethod
    def area(self): ...

    def doubled(self):
        return 2 * self.area()


class Square(Base):
    def __init__(self, side):
        super().__init__()
        self.side = side

    def area(self):
        return self.side**2


class Slots:
    __slots__ = ("a",)

    def __init__(self, a):
        self.a = a


class Meta(type):
    def __call__(cls, *args):
        instance = super().__call__(*args)
        instance.tagged = True
        return instance


class Tagged(metaclass=Meta):
    pass


class Single:
    _instance = None

    def __new__(cls):
        if cls._instance is None:
            cls._instance = super().__new__(cls)
            cls._instance.count = 0
        return cls._instance


class Outer:
    class Inner:
        def value(self):
            return "inner"

    @staticmethod
    def static(x):
        return x + 1

    @classmethod
    def named(cls, x):
        return cls.__name__, x

    @property
    def prop(self):
        return "prop"

    @functools.cached_property
    def expensive(self):
        self.computed = getattr(self, "computed", 0) + 1
        return self.computed

    def uses(self, x):
        return self.expensive + self.expensive + x

    def __call__(self, x):
        return "called", x

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return f"dynamic {name}"


class Reduced:
    def __init__(self, x):
        self.x = x

    def __reduce__(self):
        return Reduced, (self.x + 1,)


class State:
    def __init__(self):
        self.a, self.b = 1, lambda: 1

    def __getstate__(self):
        return {"a": self.a}

    def __setstate__(self, state):
        self.a = state["a"] + 1


class Generic(typing.Generic[T]):
    def __init__(self, x: T):
        self.x = x


class Ordered(collections.OrderedDict):
    pass


class MyList(list):
    def first(self):
        return self[0]


class MyError(Exception):
    def __init__(self, code, message="m"):
        super().__init__(code, message)
        self.code = code


@functools.singledispatch
def kind(x):
    return "object"


@kind.register
def _(x: int):
    return "int"


@kind.register(list)
def _of_list(x):
    return f"list of {kind(x[0])}"


@kind.register
def _of_item(x: Item):
    return "item"


def deco(number):
    def wrap(function):
        @functools.wraps(function)
        def inner(*args):
            return function(*args) + number

        return inner

    return wrap


@deco(100)
@deco(10)
def decorated(x):
    return x


@functools.lru_cache
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


@functools.total_ordering
class Version:
    def __init__(self, n):
        self.n = n

    def __eq__(self, other):
        return self.n == other.n

    def __lt__(self, other):
        return self.n < other.n


def generator(n):
    yield from range(n)


async def coroutine(x):
    await asyncio.sleep(0)
    return x + 1


def run_async(x):
    return asyncio.run(coroutine(x))


@contextlib.contextmanager
def managed(x):
    yield x + 1


def with_managed(x):
    with managed(x) as y:
        return y


def matched(x):
    match x:
        case Item(price=price):
            return "item", price
        case [first, *rest]:
            return first, rest
        case {"a": a}:
            return a
        case _:
            return None


def annotated(x: Item, y: typing.Optional[int] = None) -> list[Item]:
    return sorted((k, str(v)) for k, v in inspect.get_annotations(annotated).items())


def keywords(a, /, b, *args, c=3, **rest):
    return a, b, args, c, sorted(rest.items())


def recursive(n):
    return 1 if n == 0 else n * recursive(n - 1)


def nested_function(x):
    def add(y):
        return x + y

    return list(map(add, range(3)))


def is_same_class(x):
    return type(x) is Item, isinstance(x, Item), x == Item(2)


def identity(x):
    return x


def pickled_inside(x):
    return (
        pickle.loads(pickle.dumps(Item(x))),
        pickle.loads(pickle.dumps(kind))(1),
        copy.deepcopy(Frozen(Item(x))),
    )


def pickled_bytes(x):
    return pickle.dumps([Item(x), Color.RED, Pair(1, 2)])


def source_line(x):
    return inspect.getsource(identity).splitlines()[0]


def module_names(x):
    return identity.__module__, Item.__module__, identity.__qualname__, Outer.Inner.__qualname__, __name__


def raise_own(code):
    raise MyError(code)


def raise_from():
    try:
        raise KeyError("k")
    except KeyError as error:
        raise ValueError("v") from error


def own_error():
    try:
        call(raise_own, 4)
    except MyError as error:
        return error.code, error.args


def notes():
    error = ValueError("n")
    error.add_note("a note")
    raise error


def noted():
    try:
        call(notes)
    except ValueError as error:
        return error.__notes__


def many(fn, items):
    with make(2) as executor:
        return list(executor.map(fn, items))


def two(a, b):
    return a, b


QUESTIONS = {
    "named tuple": lambda: call(identity, Pair(1, [2])),
    "typed named tuple": lambda: call(Triple(1).total),
    "enumeration": lambda: (call(identity, Color.GREEN) is Color.GREEN, call(Color.RED.lower)),
    "integer enumeration": lambda: call(identity, [Level.HIGH]) == [Level.HIGH],
    "data class": lambda: call(identity, Item("3")),
    "frozen data class": lambda: call(identity, Frozen(Item(1), ("a",))),
    "data classes sorted": lambda: call(sorted, [Item(3), Item(1)]),
    "abstract class": lambda: call(Square(3).doubled),
    "slots": lambda: call(operator.attrgetter("a"), Slots(4)),
    "metaclass": lambda: call(hasattr, Tagged(), "tagged"),
    "nested class": lambda: call(Outer.Inner().value),
    "static method": lambda: call(Outer.static, 1),
    "class method": lambda: call(Outer.named, 1),
    "callable object": lambda: call(Outer(), 1),
    "property": lambda: call(operator.attrgetter("prop"), Outer()),
    "cached property": lambda: call(Outer().uses, 1),
    "dynamic attribute": lambda: call(operator.attrgetter("foo"), Outer()),
    "own reduce": lambda: call(operator.attrgetter("x"), Reduced(1)),
    "own state": lambda: call(operator.attrgetter("a"), State()),
    "generic class": lambda: call(operator.attrgetter("x"), Generic[int](5)),
    "subclass of a dictionary": lambda: call(len, Ordered(a=1)),
    "subclass of a list": lambda: call(MyList([7]).first),
    "class as argument": lambda: call(issubclass, Square, Base),
    "class as call": lambda: call(Item, 3),
    "singleton": lambda: call(operator.attrgetter("count"), Single()),
    "class identity in a worker": lambda: call(is_same_class, Item(2)),
    "single dispatch": lambda: calls(kind, 1, "a", [[1]], Item(1)),
    "decorators": lambda: call(decorated, 1),
    "recursive cache": lambda: call(fibonacci, 50),
    "total ordering": lambda: call(operator.gt, Version(3), Version(1)),
    "generator in a call": lambda: call(sum, list(generator(4))),
    "coroutine in a call": lambda: call(run_async, 1),
    "context manager": lambda: call(with_managed, 1),
    "match": lambda: calls(matched, Item(1), [1, 2], {"a": 3}, 4),
    "annotations": lambda: call(annotated, Item(1)),
    "keywords": lambda: call(keywords, 1, 2, 3, c=4, d=5),
    "recursion": lambda: call(recursive, 20),
    "function in a function": lambda: call(nested_function, 1),
    "partial": lambda: call(functools.partial(keywords, 1, 2, d=3), c=9),
    "partial of a method": lambda: call(functools.partial(Square(2).doubled)),
    "operator": lambda: call(operator.itemgetter(1), [1, 2]),
    "method of a built-in object": lambda: call("a,b".split, ","),
    "type": lambda: call(int, "7"),
    "pickle in a worker": lambda: call(pickled_inside, 3),
    "pickle from a worker": lambda: pickle.loads(call(pickled_bytes, 3)),
    "source of a function": lambda: call(source_line, 0),
    "names of modules": lambda: call(module_names, 0),
    "own exception": own_error,
    "chained exception": lambda: call(raise_from),
    "notes of an exception": noted,
    "map of a method": lambda: many(Outer.static, range(100)),
    "map of two iterables": lambda: list(make().map(two, "ab", [Item(1), Item(2)])),
    "functions in arguments": lambda: call(functools.reduce, operator.add, [1, 2, 3]),
    "function as argument": lambda: call(
        operator.call if hasattr(operator, "call") else identity, recursive, 5
    ),
}

if __name__ == "__main__":
    answer(QUESTIONS)

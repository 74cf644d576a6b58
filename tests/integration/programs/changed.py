"""What the main program changes before its first call reaches the workers; a failing line of the script does not matter."""

import argparse
import json
import os
import sys

import asking
import numpy as np
from asking import answer, call, calls, make

placeholder = None
number = 1
table = {"a": 1}
items = [1, 2]
array = np.zeros(3)
large = None
words = ()
known = []
rows = series = None


class Options:
    """Settings as attributes of a class."""

    debug = False
    level = 1
    names = []
    table = ()


class Point:
    """A class of the script."""

    def __init__(self, x):
        self.x = x

    def __eq__(self, other):
        return type(other) is Point and other.x == self.x


point = None
left, right = Point(1), Point(2)
content = open(__file__).read().splitlines()[0][:10]


def get_placeholder():
    return placeholder


def get_number():
    return number


def get_table():
    return sorted(table.items())


def get_items():
    return items


def get_options():
    return Options.debug, Options.level, Options.names


def get_point():
    return point.x, type(point) is Point


def get_content():
    return content


def get_array():
    array[0] += 1
    return array.tolist()


def get_large():
    return int(large.sum()), len(words)


def get_large_parts():
    return rows["head"] is series["head"], series["rows"] is rows, rows["series"] is series, len(rows["data"])


def get_named_parts():
    return known is rows["known"], len(Options.table)


def get_many(n):
    return large[n], words[n % 10]


def get_parsed():
    return arguments.executor == sys.argv[1]


def get_guarded():
    return from_guard(2), json.dumps(len(GUARDED))


def sized(n):
    return len(words) + n


def get_pair():
    return left.other is right, right.other is left, left.shared is right.shared


def set_in_main():
    global number
    number = 5
    table["b"] = 2
    items.append(3)
    Options.debug = True
    Options.names.append("x")


QUESTIONS = {
    "a placeholder": lambda: call(get_placeholder),
    "a number": lambda: call(get_number),
    "a dictionary": lambda: call(get_table),
    "a list": lambda: call(get_items),
    "class attributes": lambda: call(get_options),
    "an object of a class of the script": lambda: call(get_point),
    "two objects that point at each other": lambda: call(get_pair),
    "a file that the script reads": lambda: call(get_content),
    "an array": lambda: calls(get_array, (), ()),
    "a large array": lambda: calls(get_large, (), ()),
    "large values that share parts and point at each other": lambda: call(get_large_parts),
    "large values with a part that has a name": lambda: call(get_named_parts),
    "large values in many calls": lambda: calls(get_many, *range(5)),
    "large values by map": lambda: list(make(2).map(sized, range(4))),
    "arguments of the program": lambda: call(get_parsed),
    "a function and a value of the guarded part": lambda: call(get_guarded),
    "sys.argv": lambda: call(eval, "__import__('sys').argv") == sys.argv,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("executor")
    arguments = parser.parse_args()
    placeholder = {"set": [1, (2, 3)]}
    set_in_main()
    point = Point(4)
    left.other, right.other = right, left
    left.shared = right.shared = ["a list without a name"]
    array += 1
    large = np.arange(1_000_000)
    words = [str(n) * 20 for n in range(200_000)]
    rows = {"head": ["x"], "data": np.zeros(1_000_000), "known": known}
    series = {"head": rows["head"], "data": list(range(1_000_000)), "rows": rows}
    rows["series"] = series
    Options.table = words[:100_000]
    GUARDED = [1, 2, 3]

    def from_guard(x):
        return x + len(GUARDED)

    answer(QUESTIONS)

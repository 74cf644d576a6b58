"""A program that is started with ``python -m parts.run``, and imports relative to its package."""

from asking import answer, call

from . import greet
from .inner import deep
from .sizes import SMALL

state = {}


def both(k):
    """Return what others return."""
    state[k] = 1
    return greet(), deep(), len(state), __package__, __name__


def small():
    """Return values of modules to which no function refers."""
    from . import sizes

    return SMALL, sizes.LARGE


class Here:
    """A class of the program."""

    def __eq__(self, other):
        return type(other) is Here


QUESTIONS = {
    "relative imports": lambda: call(both, 1),
    "relative imports of values": lambda: call(small),
    "a class of the program": lambda: call(Here().__eq__, Here()),
}

if __name__ == "__main__":
    answer(QUESTIONS)

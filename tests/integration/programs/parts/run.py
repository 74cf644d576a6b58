"""A program that is started with ``python -m parts.run``, and imports relative to its package."""

from asking import answer, call

from . import greet
from .inner import deep

state = {}


def both(k):
    """Return what others return."""
    state[k] = 1
    return greet(), deep(), len(state), __package__, __name__


class Here:
    """A class of the program."""

    def __eq__(self, other):
        return type(other) is Here


QUESTIONS = {
    "relative imports": lambda: call(both, 1),
    "a class of the program": lambda: call(Here().__eq__, Here()),
}

if __name__ == "__main__":
    answer(QUESTIONS)

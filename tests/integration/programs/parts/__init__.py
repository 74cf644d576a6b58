"""A local package of the program ``packages``."""

import sys

from . import inner
from .words import GREETING

loaded = 1


def init(v):
    """Set a global of this module."""
    global loaded
    loaded = v


def get_loaded():
    """Return a global of this module."""
    return loaded


def greet():
    """Return a word of another module."""
    return GREETING, inner.deep()


def get_mark():
    """Return a value of the main module."""
    return sys.modules["__main__"].MARK

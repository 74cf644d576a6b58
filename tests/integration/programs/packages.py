"""Local packages and modules next to a script."""

import importlib
import sys

import parts.inner
from asking import answer, call, calls
from parts import greet
from parts.inner import deep as renamed


def import_in_function():
    import lonely

    return lonely.VALUE


def import_main():
    import __main__

    return __main__.MARK, sys.modules["__main__"] is __main__


def reload_part():
    return importlib.reload(parts.words).GREETING


def spec(name):
    module = importlib.import_module(name)
    return module.__spec__.name, module.__package__, module.__spec__.has_location, module.__doc__


MARK = "main"

QUESTIONS = {
    "function of a package": lambda: call(greet),
    "renamed function": lambda: call(renamed),
    "initializer of a package": lambda: calls(
        parts.get_loaded, (), (), initializer=parts.init, initargs=(9,)
    ),
    "import by name": lambda: call(parts.inner.dynamic),
    "import in a function": lambda: call(import_in_function),
    "data files": lambda: call(parts.inner.resource),
    "modules of a package": lambda: call(parts.inner.listed),
    "import of the main module": lambda: call(import_main),
    "the main module in a package": lambda: call(parts.get_mark),
    "reload": lambda: call(reload_part),
    "specs": lambda: calls(spec, "parts.inner", "parts.words", "lonely"),
}

if __name__ == "__main__":
    answer(QUESTIONS)

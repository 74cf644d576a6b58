"""Asks the questions of a program with the executor of the standard library, or with that of this project."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor


def make(max_workers: int = 1, **options: object) -> Executor:
    """Return the executor that the first argument of the program names."""
    if sys.argv[1] == "dios":
        import dios

        return dios.Executor(max_workers, **options)
    return ProcessPoolExecutor(max_workers, mp_context=multiprocessing.get_context("fork"), **options)


def answer(questions: dict[str, Callable[[], object]]) -> None:
    """Print the value of each question, or its exception."""
    for label, question in questions.items():
        try:
            shown = repr(question())
        except Exception as error:
            shown = f"{type(error).__name__}: {error}"
        print(f"{label}: {shown}", flush=True)


def call(function: Callable[..., object], *args: object, **kwargs: object) -> object:
    """Return the value of one call in a fresh executor."""
    with make() as executor:
        return executor.submit(function, *args, **kwargs).result(60)


def calls(function: Callable[..., object], *items: object, **options: object) -> list[object]:
    """Return the values of calls one after the other in one worker."""
    with make(**options) as executor:
        return [
            executor.submit(function, *(item if isinstance(item, tuple) else (item,))).result(60)
            for item in items
        ]

"""The page docs/errors.md lists every public error, with the code that the class has."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path
from typing import Final

import pytest

import dios
import dios.lib
from dios.errors import BY_CODE, Code, DiosError

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "errors.md"
ROW: Final = re.compile(r"^\| `([\w.]+)` \| (\d+) (\w+) \| (.+) \| (.+) \|$", re.MULTILINE)


def errors_of_calls() -> dict[str, type[DiosError]]:
    """Return the errors that ``dios`` itself exports, without their base class."""
    exported = (getattr(dios, name) for name in dir(dios))
    classes = {kind for kind in exported if isinstance(kind, type) and issubclass(kind, DiosError)}
    return {kind.__name__: kind for kind in classes - {DiosError}}


def errors_of_libraries() -> set[type[DiosError]]:
    """Return the errors that modules of ``dios.lib`` define."""
    errors: set[type[DiosError]] = set()
    for module in pkgutil.walk_packages(dios.lib.__path__, "dios.lib."):
        for kind in vars(importlib.import_module(module.name)).values():
            if isinstance(kind, type) and issubclass(kind, DiosError) and kind.__module__ == module.name:
                errors.add(kind)
    return errors


def class_of(row: str) -> type[DiosError]:
    """Return the class that a row names: one of ``dios``, or one of a library by its full name."""
    module, _, name = row.rpartition(".")
    named = getattr(importlib.import_module(module or "dios"), name)
    assert isinstance(named, type)
    assert issubclass(named, DiosError)
    return named


def test_the_page_lists_every_public_error() -> None:
    """Each error that a program can catch has one row, and no row names an error that does not exist."""
    rows = [class_of(row[0]) for row in ROW.findall(PAGE.read_text())]
    assert len(rows) == len(set(rows))
    assert set(rows) == {*errors_of_calls().values(), *errors_of_libraries()}


@pytest.mark.parametrize("row", ROW.findall(PAGE.read_text()), ids=lambda row: row[0])
def test_the_codes_on_the_page_are_those_of_the_classes(row: tuple[str, ...]) -> None:
    """A row gives the number and the name of the code of its class."""
    name, number, code, _, _ = row
    assert class_of(name).code is Code[code]
    assert int(number) == Code[code]


def test_every_code_has_one_public_class() -> None:
    """An error that crosses the wire is raised as the class of its code, which programs can import."""
    assert set(BY_CODE) == set(Code)
    assert set(BY_CODE.values()) == set(errors_of_calls().values())


@pytest.mark.parametrize("kind", [kind for _, kind in sorted(errors_of_calls().items())])
def test_each_docstring_says_what_to_do(kind: type[DiosError]) -> None:
    """The docstring has the cause, and after an empty line what the caller can do about it."""
    cause, _, remedy = (kind.__doc__ or "").partition("\n\n")
    assert cause.strip()
    assert remedy.strip()

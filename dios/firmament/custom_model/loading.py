"""Makes a cost model from the text of a file. The text is executed: callers decide where."""

from __future__ import annotations

import linecache
import sys
import traceback
from collections.abc import Mapping
from types import ModuleType
from typing import Final, cast

from dios.firmament.models.base import BaseModel
from dios.firmament.models.catalogue import MODELS, made_of, parameters_of
from dios.firmament.models.cost_terms import BadModelError
from dios.firmament.models.protocol import CostModel
from dios.firmament.parameters import Value
from dios.limits import SCHED_MODEL_BYTES_MAX

MODULE: Final = "own_cost_model"
_FILE: Final = "<cost model>"


class ModelFile:
    """The only cost model that a file defines.

    Args:
        source: the text of the file.

    Raises:
        BadModelError: the text cannot be executed, it defines no model or several, or the model has no name
            of its own; the message has the line.
    """

    def __init__(self, source: str) -> None:
        if len(source.encode()) > SCHED_MODEL_BYTES_MAX:
            raise BadModelError(f"a cost model has at most {SCHED_MODEL_BYTES_MAX:,} bytes")
        linecache.cache[_FILE] = (len(source), None, source.splitlines(keepends=True), _FILE)
        module = sys.modules[MODULE] = ModuleType(MODULE)
        try:
            exec(compile(source, _FILE, "exec"), vars(module))  # noqa: S102 - see the module's docstring
        except BaseException as error:
            raise BadModelError(f"the file cannot be executed: {described(error)}") from error
        classes = [
            candidate
            for candidate in vars(module).values()
            if isinstance(candidate, type)
            and issubclass(candidate, BaseModel)
            and candidate.__module__ == MODULE
        ]
        # A class that others of the file build upon is not the model.
        classes = [
            candidate
            for candidate in classes
            if not any(candidate is not other and issubclass(other, candidate) for other in classes)
        ]
        if len(classes) != 1:
            names = ", ".join(candidate.__name__ for candidate in classes) or "none"
            raise BadModelError(
                "the file must define one class that is derived from BaseModel or PerArcModel of"
                f" dios.firmament.models.base; found: {names}"
            )
        self._model: Final = classes[0]
        self.name: Final = _text(self._model, "name")
        self.summary: Final = _text(self._model, "summary")
        if self.name in MODELS or self.name == BaseModel.name:
            raise BadModelError(
                f"the class {self._model.__name__} needs a name of its own, such as name = 'mine';"
                f" {self.name!r} is taken"
            )

    @property
    def parameters(self) -> dict[str, Value]:
        """The parameters of the model and their defaults."""
        try:
            return parameters_of(self._model)
        except (TypeError, ValueError) as error:
            raise BadModelError(f"the parameters of {self.name} cannot be read: {error}") from None

    def make(self, given: Mapping[str, Value]) -> CostModel:
        """Return a new model. Raise BadModelError for a bad parameter, or if the model raises."""
        try:
            return made_of(self._model, self.name, given)
        except BadModelError:
            raise
        except Exception as error:
            raise BadModelError(f"the model {self.name} cannot be made: {described(error)}") from error


def described(error: BaseException) -> str:
    """Return an error of the model's code with the line where it was raised."""
    summary = "".join(traceback.format_exception_only(error)).strip().rpartition("\n")[2]
    if isinstance(error, SyntaxError) and error.filename == _FILE:
        return f"line {error.lineno}: {summary}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == _FILE]
    return f"line {lines[-1]}: {summary}" if lines else summary


def _text(model: type[BaseModel], attribute: str) -> str:
    value = cast("object", getattr(model, attribute, None))
    if not isinstance(value, str) or "\n" in value or len(value) > 200:
        raise BadModelError(f"the class {model.__name__} needs one short line of text as its {attribute}")
    return value

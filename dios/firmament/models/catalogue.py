"""The cost models by name, for ``dios sched models`` and ``dios sched set-model``.

A model's module is imported when the model is used.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import cast

from dios.firmament.models.base import BaseModel
from dios.firmament.models.cost_terms import BadModelError
from dios.firmament.models.protocol import CostModel
from dios.firmament.parameters import Value, converted

_PLACES = {
    "spread": "spread:SpreadModel",
    "trivial": "trivial:TrivialModel",
    "random-fit": "random_fit:RandomFitModel",
    "coco": "coco:CocoModel",
    "green": "green:GreenModel",
    "quincy": "quincy:QuincyModel",
    "whare-m": "whare:WhareM",
    "whare-c": "whare:WhareC",
    "whare-cs": "whare:WhareCs",
    "whare-mcs": "whare:WhareMCs",
    "delay": "delay:DelayModel",
    "late": "late:LateModel",
    "apollo": "apollo:ApolloModel",
    "sparrow": "sparrow:SparrowModel",
    "kmn": "kmn:KmnModel",
    "choosy": "choosy:ChoosyModel",
    "h-drf": "choosy:HdrfModel",
    "jockey": "jockey:JockeyModel",
    "hfs": "hfs:HfsModel",
    "ciel": "ciel:CielModel",
    "alsched": "alsched:AlschedModel",
    "tetrisched": "tetrisched:TetrischedModel",
    "paragon": "paragon:ParagonModel",
    "quasar": "paragon:QuasarModel",
    "tarcil": "tarcil:TarcilModel",
    "hawk": "hawk:HawkModel",
    "mercury": "hawk:MercuryModel",
    "bistro": "bistro:BistroModel",
}
"""Module of this package and class, by the model's name."""


class _Catalogue(Mapping[str, type[BaseModel]]):
    """The classes by name, each imported at its first use."""

    def __getitem__(self, name: str) -> type[BaseModel]:
        module, _, class_name = _PLACES[_spelled(name)].partition(":")
        return cast("type[BaseModel]", getattr(import_module(f"dios.firmament.models.{module}"), class_name))

    def __iter__(self) -> Iterator[str]:
        return iter(_PLACES)

    def __len__(self) -> int:
        return len(_PLACES)


def _spelled(name: str) -> str:
    """Return the listed form of a name; whare_m is accepted for whare-m."""
    return name.replace("_", "-")


MODELS: Mapping[str, type[BaseModel]] = _Catalogue()


def find(name: str) -> type[BaseModel]:
    """Return a model's class.

    Raises:
        BadModelError: the model does not exist; the message lists all models.
    """
    if _spelled(name) not in _PLACES:
        raise BadModelError(f"unknown cost model {name!r}. Cost models: {', '.join(sorted(_PLACES))}")
    return MODELS[name]


def parameters(name: str) -> dict[str, Value]:
    """Return a model's parameters and their defaults."""
    return parameters_of(find(name))


def parameters_of(model: type[BaseModel]) -> dict[str, Value]:
    """Return the parameters of a model's class and their defaults."""
    return {parameter.name: cast("Value", parameter.default) for parameter in _parameters(model)}


def make(name: str, **given: Value) -> CostModel:
    """Return a new model; parameters may be numbers, or words of a command line.

    Raises:
        BadModelError: an unknown model or parameter (the message lists the known ones), or a bad value.
    """
    return made_of(find(name), name, given)


def made_of(model: type[BaseModel], name: str, given: Mapping[str, Value]) -> CostModel:
    """Return a new model of a class; see ``make``."""
    known = parameters_of(model)
    strange = sorted(set(given) - set(known))
    if strange:
        listed = ", ".join(f"{key}={default}" for key, default in known.items()) or "none"
        raise BadModelError(f"model {name} has no parameter {strange[0]!r}; its parameters are: {listed}")
    values = {key: _converted(name, key, value, known[key]) for key, value in given.items()}
    # The arguments were just compared with the signature, which no static type can express.
    return partial(model, **values)()


def _parameters(model: type[BaseModel]) -> list[inspect.Parameter]:
    if model.__init__ is object.__init__:
        return []
    return [
        parameter for parameter in inspect.signature(model).parameters.values() if parameter.name != "self"
    ]


def _converted(model: str, name: str, value: Value, default: Value) -> Value:
    try:
        return converted(value, default)
    except ValueError as error:
        raise BadModelError(f"model {model}: {name} is {value!r}; {error}") from None

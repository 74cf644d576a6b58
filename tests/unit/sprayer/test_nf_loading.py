"""Loading of network functions by name, and conversion of their settings."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest

from dios.cli import network_functions
from dios.errors import InvalidError
from dios.sprayer.functions.balancer import Balancer
from dios.sprayer.functions.firewall import Firewall
from dios.sprayer.functions.nat import Nat
from dios.sprayer.runtime.loading import BUILT_IN, load, settings_of

BASE = "from dios.sprayer import NetworkFunction\n"
ONE = BASE + "class One(NetworkFunction):\n    def __init__(self, size=3):\n        self.size = size\n"
TWO = ONE + "class Two(NetworkFunction):\n    pass\n"
PATTERNS = ['patterns=[{ name = "x", text = "y" }]']
BALANCER = ['service=["192.0.2.1", 80]', 'servers=[["10.0.0.2", 8080]]', "inner=10.0.0.1"]


def file(folder: Path, text: str, name: str = "own.py") -> str:
    """A file of Python; its path."""
    path = folder / name
    path.write_text(text)
    return str(path)


def test_values_are_those_of_toml_and_all_else_is_text() -> None:
    """Numbers, lists and tables are read as TOML has them, addresses and words as they are."""
    settings = settings_of(["a=3", "b=[1, 2]", "c=192.0.2.1", "d=remove", 'e="x"', "f=[{ g = true }]"])
    assert settings == {"a": 3, "b": [1, 2], "c": "192.0.2.1", "d": "remove", "e": "x", "f": [{"g": True}]}


@pytest.mark.parametrize(
    ("words", "told"),
    [(["a"], "write KEY=VALUE"), (["1=2"], "write KEY=VALUE"), (["a=1", "a=2"], "set twice")],
)
def test_words_that_set_nothing_are_refused(words: list[str], told: str) -> None:
    """A word without a value, or a key twice, is an error that names it."""
    with pytest.raises(InvalidError, match=told):
        settings_of(words)


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_ready_function_is_there_by_its_name(name: str) -> None:
    """Each has a class that is made with what it must have, and a missing setting is named."""
    needed = {
        "nat": ["addresses=192.0.2.1"],
        "nat64": ["addresses=192.0.2.1"],
        "siit": ["address=192.0.2.1"],
        "balancer": BALANCER,
        "dpi": PATTERNS,
    }.get(name, [])
    assert type(load(name, settings_of(needed))).__name__ == BUILT_IN[name]
    if needed:
        with pytest.raises(InvalidError, match=f"{needed[0].partition('=')[0]}.* must be set"):
            load(name, {})


def test_the_help_says_what_ready_functions_are_made_with() -> None:
    """``dios nf run --help`` names every ready function, and all that each takes."""
    parameters = {}
    for name, kind in BUILT_IN.items():
        function = getattr(importlib.import_module(f"dios.sprayer.functions.{name}"), kind)
        parameters[name] = list(inspect.signature(function).parameters)
    told = [line.split(maxsplit=1) for line in network_functions.READY.splitlines()]
    assert {name: words.split(", ") for name, words in told} == parameters


def test_settings_become_what_classes_want() -> None:
    """One address is a list of one, tables are rules, and lists are pairs."""
    nat = load("nat", settings_of(["addresses=192.0.2.1", "flows_max=100"]))
    assert isinstance(nat, Nat)
    assert (len(nat.addresses), nat.flows_max) == (1, 100)
    rules = 'rules=[{ target = "192.0.2.0/24", ports = [443, 443] }, { allow = false }]'
    wall = load("firewall", settings_of([rules]))
    assert isinstance(wall, Firewall)
    assert wall.ends[:, [0, 3, 4]].tolist() == [[1, 443, 443], [0, 0, 65_535]]
    balancer = load("balancer", settings_of(BALANCER))
    assert isinstance(balancer, Balancer)
    assert balancer.port == 80


@pytest.mark.parametrize(
    ("name", "words", "told"),
    [
        ("nat", ["address=192.0.2.1"], "no setting 'address'; known settings: addresses, ports, flows_max"),
        ("nat", ["addresses=nowhere"], "'nowhere' does not appear to be an IPv4 or IPv6 address"),
        ("firewall", ["rules=allow"], "rules: write each row as a table"),
        ("firewall", ["rules=[{ port = 1 }]"], "there is no field 'port'; known fields: allow"),
        ("monitor", ["flows_max=many"], "flows_max must be an integer, not 'many'"),
        ("redundancy", ["key=7"], "key must be a string, not 7"),
        ("nut", [], "'nut' is no network function"),
        ("none.py", [], "none.py: no such file"),
    ],
)
def test_what_cannot_be_is_told_by_name(name: str, words: list[str], told: str) -> None:
    """An unknown setting, a wrong value, an unknown function and a missing file are errors that say so."""
    with pytest.raises(InvalidError, match=told):
        load(name, settings_of(words))


def test_a_file_with_one_class_needs_no_name(tmp_path: Path) -> None:
    """The only class of a file is used; of two classes one must be named."""
    function = load(file(tmp_path, ONE), {"size": 5})
    assert (type(function).__name__, vars(function)["size"]) == ("One", 5)
    two = file(tmp_path, TWO)
    with pytest.raises(InvalidError, match=r"One, Two\. Choose one, as in .*own\.py:One"):
        load(two, {})
    assert type(load(f"{two}:Two", {})).__name__ == "Two"
    with pytest.raises(InvalidError, match="does not define Three"):
        load(f"{two}:Three", {})


def test_a_file_s_name_is_nobody_else_s(tmp_path: Path) -> None:
    """A function in a file called json.py leaves the library of that name what it was."""
    load(file(tmp_path, ONE, "json.py"), {})
    assert importlib.import_module("json").loads("1") == 1


def test_an_object_of_a_file_is_taken_as_it_is(tmp_path: Path) -> None:
    """A file that makes its function has made its settings, too."""
    path = file(tmp_path, TWO + "mine = One(9)\n")
    assert vars(load(path, {}))["size"] == 9
    with pytest.raises(InvalidError, match="this is an object, not a class"):
        load(path, {"size": 1})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = 1\n", "no subclass of dios.sprayer.NetworkFunction"),
        ("x = 1\n\ny = 1 / 0\n", r"own\.py:3: ZeroDivisionError"),
        ("x = (\n", r"own\.py: SyntaxError"),
        (BASE + "class A(NetworkFunction):\n    pass\nb = 3\n", ""),
    ],
)
def test_a_file_that_is_wrong_is_told_by_its_line(tmp_path: Path, text: str, told: str) -> None:
    """An error in a file is reported with file and line; other objects are not used as functions."""
    path = file(tmp_path, text)
    if told:
        with pytest.raises(InvalidError, match=told):
            load(path, {})
    else:
        with pytest.raises(InvalidError, match="this is of type int, not a NetworkFunction"):
            load(f"{path}:b", {})


def test_a_file_may_use_what_lies_beside_it(tmp_path: Path) -> None:
    """Modules in the file's own folder can be imported, as a program's can."""
    file(tmp_path, "SIZE = 11\n", "beside_it.py")
    function = load(file(tmp_path, "from beside_it import SIZE\n" + ONE + "one = One(SIZE)\n"), {})
    assert vars(function)["size"] == 11

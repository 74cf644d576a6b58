"""No two modules of the packages import each other, directly or through others, and few folders do.

Imports under TYPE_CHECKING and inside functions count. What importing a module does to its parent packages
does not.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def module_name(path: Path) -> str:
    """The name by which a file is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path, own: str, modules: dict[str, Path]) -> Iterator[str]:
    """The modules of the package that a file imports anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"a relative import in {own}"
            names = [
                name if (name := f"{node.module}.{alias.name}") in modules else str(node.module)
                for alias in node.names
            ]
        else:
            continue
        yield from (name for name in names if name in modules and name != own)


@cache
def graph() -> dict[str, set[str]]:
    """What each module of the product and of the laboratory imports from them."""
    modules = {
        module_name(path): path for path in [*(ROOT / "dios").rglob("*.py"), *(ROOT / "labs").rglob("*.py")]
    }
    return {name: set(imported(path, name, modules)) for name, path in modules.items()}


def cycles(edges: dict[str, set[str]]) -> list[list[str]]:
    """The sets of modules that lead to each other, each sorted (Tarjan's strongly connected components)."""
    components: list[list[str]] = []
    numbers: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []

    def visit(name: str) -> None:
        numbers[name] = low[name] = len(numbers)
        stack.append(name)
        for other in sorted(edges[name]):
            if other not in numbers:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], numbers[other])
        if low[name] == numbers[name]:
            place = stack.index(name)
            members = stack[place:]
            del stack[place:]
            if len(members) > 1:
                components.append(sorted(members))

    for name in sorted(edges):
        if name not in numbers:
            visit(name)
    return components


def test_no_modules_import_each_other() -> None:
    """The modules of the package can be put into an order in which each imports only those before it."""
    assert cycles(graph()) == []


# These folders import each other today. A set may lose members, and gets no new ones.
KNOWN: dict[str, list[set[str]]] = {
    "dios.core": [{"calls", "containment", "lifetimes", "model", "remote", "step"}],
    "dios.host": [{"content", "handover", "loop", "network", "peers"}],
}


def children(parent: str, edges: dict[str, set[str]]) -> dict[str, set[str]]:
    """What each module and folder of a package imports from the others of the package."""
    place = parent.count(".") + 1
    inside: dict[str, set[str]] = {}
    for name in (name for name in edges if name.startswith(f"{parent}.")):
        child = name.split(".")[place]
        others = {other.split(".")[place] for other in edges[name] if other.startswith(f"{parent}.")}
        inside.setdefault(child, set()).update(others - {child})
    return inside


@pytest.mark.parametrize("parent", ["dios.core", "dios.host", "dios.lib", "dios.node", "dios.web"])
def test_no_folders_import_each_other(parent: str) -> None:
    """The modules and folders of a package can be put into such an order, but for those that are known."""
    known = KNOWN.get(parent, [])
    new = [cycle for cycle in cycles(children(parent, graph())) if not any(map(set(cycle).issubset, known))]
    assert new == []


def test_a_cycle_is_found() -> None:
    """Modules that import each other through a third are found, and none that only leads to them."""
    edges: dict[str, set[str]] = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": set()}
    assert cycles(edges) == [["a", "b", "c"]]

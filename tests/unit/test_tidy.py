"""Rules that no linter checks: banned calls, unused bounds, and that the repository names no machine."""

from __future__ import annotations

import ast
import gc
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from dios import limits
from labs import limits as simulation_limits

ROOT = Path(__file__).resolve().parents[2]
UNITS = {"KIB", "MIB", "GIB"}
"""The names of limits.py that bound nothing themselves."""

PURE_BANNED_MODULES = {
    "time",
    "random",
    "secrets",
    "logging",
    "uuid",
    "datetime",
    "os",
    "socket",
    "threading",
}
VAGUE_NAMES = {"found", "each", "one", "made"}
"""Names that say how a value arrived, not what it is."""
VAGUE_PARAMETERS = {"what", "where", "whom"}
DOCUMENTED = re.compile(r"overload$|\.setter$|^_in_place_of")
"""Decorators of functions that have their docstring elsewhere."""
PURE_BANNED_CALLS = {"print", "open", "input", "exec", "eval"}


@pytest.fixture(scope="module", autouse=True)
def _no_collection() -> Iterator[None]:
    """Syntax trees are large and have no cycles: to look for some takes longer than the tests."""
    gc.disable()
    yield
    gc.enable()


@cache
def tracked() -> tuple[Path, ...]:
    """Every file that belongs to the repository, whether committed already or not."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        # A source archive has no git: then everything below the known folders belongs to it.
        folders = [ROOT / name for name in ("dios", "labs", "tests", "docs", "examples")]
        paths = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
        return tuple(path for path in [*paths, *ROOT.glob("*.*")] if "__pycache__" not in path.parts)
    return tuple(path for name in listed.decode().split("\0") if name and (path := ROOT / name).is_file())


def python_files(*folders: str) -> list[Path]:
    """The repository's Python files below ``folders`` of its root."""
    roots = [ROOT / folder for folder in folders]
    return [p for p in tracked() if p.suffix == ".py" and (not roots or any(r in p.parents for r in roots))]


@cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(), filename=str(path))


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method of a file."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def imported(path: Path) -> Iterator[tuple[str, int]]:
    """Every top-level module that a file imports, with the line."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name.split(".")[0], node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0], node.lineno


def test_core_and_wire_have_no_clock_no_entropy_and_no_voice() -> None:
    """Nothing in core or wire imports a clock, entropy, logging or I/O, or prints."""
    violations: list[str] = []
    for path in python_files("dios/core", "dios/wire"):
        place = path.relative_to(ROOT)
        violations += [
            f"{place}:{line} imports {name}" for name, line in imported(path) if name in PURE_BANNED_MODULES
        ]
        violations += [
            f"{place}:{node.lineno} calls {node.func.id}"
            for node in ast.walk(tree_of(path))
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in PURE_BANNED_CALLS
        ]
    assert not violations, violations


def test_only_the_command_line_prints() -> None:
    """Below the command line nothing in the product calls print."""
    prints = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in python_files("dios")
        if ROOT / "dios" / "cli" not in path.parents
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not prints, prints


def test_every_bound_bounds_something() -> None:
    """Every name of dios/limits.py is used elsewhere in dios, and every name of labs/limits.py in labs."""
    unused: list[str] = []
    for folder, bounds in (("dios", limits), ("labs", simulation_limits)):
        words: set[str] = set()
        for path in python_files(folder):
            if path != ROOT / folder / "limits.py":
                words.update(re.findall(r"\b[A-Z][A-Z0-9_]+\b", path.read_text()))
        unused += [name for name in vars(bounds) if name.isupper() and name not in UNITS | words]
    assert not unused, f"delete these bounds or enforce them: {unused}"


def test_every_package_says_what_is_in_it() -> None:
    """The docstring of every package says what the package holds, and names each of its modules."""
    silent: list[str] = []
    for path in python_files("dios", "labs"):
        if path.name != "__init__.py":
            continue
        text = ast.get_docstring(tree_of(path)) or ""
        inside = {other.stem for other in path.parent.glob("*.py") if other.stem[:2] != "__"}
        inside |= {other.parent.name for other in path.parent.glob("*/__init__.py")}
        missing = sorted(name for name in inside if not re.search(rf"\b{name}\b", text))
        if not text or (missing and path.parent != ROOT / "dios"):
            silent.append(f"{path.relative_to(ROOT)}: {', '.join(missing) or 'no docstring'}")
    assert not silent, silent


def test_every_module_says_what_it_is_for() -> None:
    """Every module of the product and of the laboratory that holds code begins with a docstring."""
    silent = [
        str(path.relative_to(ROOT))
        for path in python_files("dios", "labs")
        if path.read_text().strip() and ast.get_docstring(tree_of(path)) is None
    ]
    assert not silent, silent


def named(node: ast.AST) -> str | None:
    """Return the name that a node gives to a variable, parameter, attribute, function or class."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            return name
        case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return name
        case ast.ClassDef(name=name) | ast.alias(asname=name):
            return name
        case ast.MatchAs(name=name) | ast.MatchStar(name=name) | ast.ExceptHandler(name=name):
            return name
    return None


def documented_methods(classes: dict[str, list[ast.ClassDef]], name: str) -> set[str]:
    """The methods that a class of this name documents or inherits with a docstring."""
    methods: set[str] = set()
    for node in classes.get(name, []):
        methods |= {
            member.name
            for member in node.body
            if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(member)
        }
        for base in {base_name(base) for base in node.bases} - {name}:
            methods |= documented_methods(classes, base)
    return methods


def base_name(base: ast.expr) -> str:
    """The name of a base class, without its module and its parameters."""
    return ast.unparse(base).partition("[")[0].rpartition(".")[2]


def test_each_public_method_or_its_base_has_a_docstring() -> None:
    """An override of a documented method needs no docstring; every other public method has one."""
    classes: dict[str, list[ast.ClassDef]] = {}
    for path in python_files("dios"):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, []).append(node)
    silent = [
        f"{name}.{member.name}"
        for name, nodes in classes.items()
        if not name.startswith("_")
        for node in nodes
        for member in node.body
        if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef)
        and not (member.name.startswith("_") or ast.get_docstring(member))
        and not any(DOCUMENTED.search(ast.unparse(mark)) for mark in member.decorator_list)
        and not any(member.name in documented_methods(classes, base_name(base)) for base in node.bases)
    ]
    assert not silent, silent


def test_names_say_what_a_value_is() -> None:
    """Nothing is named found, each, one or made, and no parameter what, where or whom."""
    vague = [
        f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)} {name}"
        for path in python_files("dios", "labs", "tests", "examples", "cluster")
        for node in ast.walk(tree_of(path))
        if (name := named(node)) in VAGUE_NAMES or (isinstance(node, ast.arg) and name in VAGUE_PARAMETERS)
    ]
    assert not vague, vague


def test_every_test_states_its_claim() -> None:
    """Every test function has a docstring: the claim it holds."""
    silent = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in python_files("tests")
        for node in functions(path)
        if node.name.startswith("test_") and ast.get_docstring(node) is None
    ]
    assert not silent, silent


def test_no_test_sleeps_for_a_fixed_time() -> None:
    """No test calls time.sleep or trio.sleep but inside a loop that waits for a condition."""
    sleeps: list[str] = []
    for path in python_files("tests"):
        for function in functions(path):
            if not function.name.startswith("test_"):
                continue
            loops = [n for n in ast.walk(function) if isinstance(n, ast.While | ast.For)]
            inside = {id(node) for loop in loops for node in ast.walk(loop)}
            sleeps += [
                f"{path.relative_to(ROOT)}:{node.lineno}"
                for node in ast.walk(function)
                if isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "sleep"
                and id(node) not in inside
            ]
    assert not sleeps, sleeps


@pytest.mark.parametrize(
    "pattern",
    [r"/wor[k]/[a-z]", r"/tmp/brie[f]", r"/hom[e]/[a-z]+/", r"/roo[t]/[a-z.]"],
)
def test_the_repository_names_no_machine(pattern: str) -> None:
    """No file holds a path that exists on one developer's machine only."""
    mentions = [
        str(path.relative_to(ROOT))
        for path in tracked()
        if path != Path(__file__).resolve()
        and b"\0" not in (data := path.read_bytes())[:1024]
        and re.search(pattern.encode(), data)
    ]
    assert not mentions, mentions

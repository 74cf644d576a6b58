"""Write a sample of mutants of a package: ``python generate.py PACKAGE FOLDER --mutants 300 --seed 1``.

It runs in the environment of the mutation library and reads the sources without importing them. A place in
the sources is drawn first, then a change of that place, so that places with many changes are not preferred.
"""

from __future__ import annotations

import argparse
import difflib
import json
import random
import re
import sys
from pathlib import Path
from typing import Final, NamedTuple

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator, operator_names

CHANGES: Final = re.compile(
    r"core/(ReplaceComparisonOperator_\w+|ReplaceBinaryOperator_(Add_Sub|Sub_Add|Mul_FloorDiv|FloorDiv_Mul"
    r"|Mod_FloorDiv|BitAnd_BitXor|LShift_RShift|RShift_LShift)|ReplaceUnaryOperator_(Delete_Not|USub_UAdd)"
    r"|AddNot|ReplaceTrueWithFalse|ReplaceFalseWithTrue|ReplaceAndWithOr|ReplaceOrWithAnd"
    r"|ReplaceBreakWithContinue|ReplaceContinueWithBreak|ExceptionReplacer|NumberReplacer|ZeroIterationForLoop)"
)
"""Changes of a program. A changed annotation or decorator is mostly the same program or none."""


class Change(NamedTuple):
    """The n-th change of one kind in a file."""

    kind: str
    occurrence: int


def changes_by_place(source: str, operators: dict[str, Operator]) -> dict[tuple[int, int], list[Change]]:
    """Return the possible changes of a module by the line and column of their start."""
    nodes = list(ast_nodes(get_ast(source)))
    changes: dict[tuple[int, int], list[Change]] = {}
    for kind, operator in operators.items():
        starts = (start for node in nodes for start, _ in operator.mutation_positions(node))
        for occurrence, start in enumerate(starts):
            changes.setdefault(start, []).append(Change(kind, occurrence))
    return changes


def changed_lines(source: str, mutant: str) -> str:
    """Return the removed and the added lines in the manner of a diff."""
    lines = difflib.unified_diff(source.splitlines(), mutant.splitlines(), lineterm="", n=0)
    return "\n".join(line for line in list(lines)[3:])


def main() -> None:
    """Write the sample's files and ``mutants.json``, which lists them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("package", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mutants", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    operators = {name: get_operator(name)() for name in sorted(operator_names()) if CHANGES.fullmatch(name)}
    sources = {path: path.read_text() for path in sorted(arguments.package.rglob("*.py"))}
    places = [
        (path, place, changes)
        for path, source in sources.items()
        for place, changes in sorted(changes_by_place(source, operators).items())
    ]
    chance = random.Random(arguments.seed)  # noqa: S311 - a sample is no secret
    arguments.folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, str | int]] = []
    for path, (line, _), changes in chance.sample(places, min(arguments.mutants, len(places))):
        change = chance.choice(changes)
        mutant = mutate_code(sources[path], operators[change.kind], change.occurrence)
        name = f"{len(rows)}.py"
        (arguments.folder / name).write_text(mutant)
        diff = changed_lines(sources[path], mutant)
        rows.append({"path": str(path), "line": line, "source": name, "diff": diff})
    (arguments.folder / "mutants.json").write_text(json.dumps(rows))
    sys.stdout.write(f"{len(rows)} mutants of {len(places)} places in {len(sources)} files\n")


if __name__ == "__main__":
    main()

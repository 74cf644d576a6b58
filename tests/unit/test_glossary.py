"""docs/glossary.md is the only vocabulary: it has every term that names of modules and classes use."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "glossary.md").read_text()
ORDINARY = tomllib.loads((Path(__file__).parent / "ordinary_words.toml").read_text())
SCRIPTS = ("labs/benchmarks/", "labs/examples/")
"""Folders whose names are no vocabulary."""
PART = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")


def terms() -> list[str]:
    """Return the terms that the page defines, in its order."""
    return [line.split("|")[1].strip() for line in PAGE.splitlines() if re.match(r"\| (?!term \||--)", line)]


@cache
def base(word: str) -> set[str]:
    """Return the forms of which ``word`` may be an inflection, itself included."""
    forms = {word}
    for ending in ("s", "es", "d", "ed", "ing", "r", "er"):
        if word.endswith(ending) and len(word) > len(ending) + 2:
            stem = word.removesuffix(ending)
            forms |= {stem, stem + "e"}
            if len(stem) > 3 and stem[-1] == stem[-2]:
                forms.add(stem[:-1])
    if word.endswith("ies"):
        forms.add(word.removesuffix("ies") + "y")
    if word.endswith("ied"):
        forms.add(word.removesuffix("ied") + "y")
    return forms


def defined_words() -> set[str]:
    """Return every word of every term, and the names of cost models."""
    models = re.search(r"^The cost models have the names of their papers:([^(]*)", PAGE, re.MULTILINE)
    assert models
    text = " ".join([*terms(), models[1]])
    return {word.lower() for word in re.findall(r"[A-Za-z]+", text)}


@cache
def used_words() -> dict[str, str]:
    """Return the words of names of public modules and classes of ``dios`` and ``labs``, each with a place."""
    places_by_word: dict[str, set[str]] = defaultdict(set)
    for path in [*(ROOT / "dios").rglob("*.py"), *(ROOT / "labs").rglob("*.py")]:
        place = str(path.relative_to(ROOT))
        if place.startswith(SCRIPTS):
            continue
        for part in path.relative_to(ROOT).with_suffix("").parts:
            for word in [] if part.startswith("_") else PART.findall(part.replace("_", " ")):
                places_by_word[word.lower()].add(place)
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                for word in PART.findall(node.name):
                    places_by_word[word.lower()].add(f"{place} {node.name}")
    return {word: min(places) for word, places in places_by_word.items()}


def ordinary_words() -> dict[str, str]:
    """Return the words that need no definition, each with the name of its list."""
    return {word: name for name, entry in ORDINARY.items() for word in entry["words"].split()}


def test_every_term_is_defined_once() -> None:
    """No term has two definitions, and every definition has text."""
    names = terms()
    assert len(names) > 100
    twice = {name for name in names if names.count(name) > 1}
    assert not twice, f"defined twice: {sorted(twice)}"
    empty = [line for line in PAGE.splitlines() if re.match(r"\| [^|]+ \|\s*\|$", line)]
    assert not empty, empty


def test_every_word_of_a_name_is_a_term_or_an_ordinary_word() -> None:
    """The words of the names of modules and classes are defined in the glossary, or listed as ordinary."""
    known = defined_words() | set(ordinary_words())
    missing = {word: place for word, place in used_words().items() if not base(word) & known}
    lines = "\n".join(f"  {word:20} {place}" for word, place in sorted(missing.items()))
    assert not missing, (
        "define these words in docs/glossary.md if they are terms of this project, rename what they name if "
        f"there is a standard term, or add them to tests/unit/ordinary_words.toml:\n{lines}"
    )


def test_the_list_of_ordinary_words_is_short() -> None:
    """Each ordinary word is used by a name, is in one list only, and its list has a reason."""
    lists = {name: entry["words"].split() for name, entry in ORDINARY.items()}
    assert all(entry["reason"] for entry in ORDINARY.values())
    everything = [word for words in lists.values() for word in words]
    twice = {word for word in everything if everything.count(word) > 1}
    assert not twice, f"listed twice: {sorted(twice)}"
    used = {form for word in used_words() for form in base(word)}
    unused = sorted(set(everything) - used)
    assert not unused, f"no name uses these words any more; remove them from ordinary_words.toml: {unused}"

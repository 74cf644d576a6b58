"""The documents are true: links lead somewhere, and the files and commands that they name exist.

``tests/integration`` runs the commands and programs of the documents.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup
from typer.main import get_command

from dios.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "changelog.d").glob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)|(?:src|srcset)=\"([^\"]+)\"", re.MULTILINE)
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
TARGET = re.compile(r"^([a-z-]+):", re.MULTILINE)
NAMED_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
COMMAND = re.compile(r"(?:^|`)dios ([a-z][a-z-]*(?: [a-z][a-z-]*)?)", re.MULTILINE)
TAGS_OF_DIGESTS = {
    "statement of",
    "audit head",
    "audit log",
    "join token",
    "fingerprint",
    "mandate of",
    "extension of",
    "register of",
}
"""Texts like "dios audit log 1" that digests begin with: no commands."""
LINE_COLUMNS_MAX = 100
TREE_PATH = re.compile(r"`((?:dios|labs|tests|docs|examples)/[\w/.-]+\.(?:py|md))`")


def links_of(text: str) -> list[str]:
    """Return the targets of all links and pictures in a document, those of reference links included."""
    return ["".join(groups) for groups in LINK.findall(text)]


def anchor(heading: str) -> str:
    """Return the fragment under which a rendered page shows ``heading``."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(path: Path) -> set[str]:
    """Return every fragment of a document."""
    return {anchor(heading) for heading in HEADING.findall(path.read_text())}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(document: Path) -> None:
    """A link inside the repository names a file, and a heading in it, that exist."""
    broken: list[str] = []
    for link in links_of(document.read_text()):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        place, _, fragment = link.partition("#")
        target = (document.parent / place).resolve() if place else document
        if not target.exists() or (fragment and fragment not in anchors(target)):
            broken.append(link)
    assert not broken, broken


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_named_exists(document: Path) -> None:
    """A path written as code in a document exists in the tree."""
    gone = [path for path in TREE_PATH.findall(document.read_text()) if not (ROOT / path).exists()]
    assert not gone, gone


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_test_named_exists(document: Path) -> None:
    """A test that a document calls on, as `FILE::TEST`, is in that file."""
    gone = [
        f"{path}::{name}"
        for path, name in NAMED_TEST.findall(document.read_text())
        if not (ROOT / path).exists() or f"def {name}(" not in (ROOT / path).read_text()
    ]
    assert not gone, gone


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_every_make_target_named_exists(name: str) -> None:
    """Each `make TARGET` that a newcomer reads is a target of the Makefile."""
    targets = set(TARGET.findall((ROOT / "Makefile").read_text()))
    named = set(re.findall(r"\bmake ([a-z][a-z-]*)", (ROOT / name).read_text()))
    assert named <= targets, named - targets


def test_every_document_is_reachable_from_the_index() -> None:
    """Every page of docs/ can be found by following links from docs/index.md."""
    seen: set[Path] = set()
    todo = [ROOT / "docs" / "index.md"]
    while todo:
        page = todo.pop()
        if page.is_dir():
            # A folder that is linked shows all its pages.
            todo += page.glob("*.md")
        if page in seen or not page.is_file() or page.suffix != ".md":
            continue
        seen.add(page)
        links = [link.partition("#")[0] for link in links_of(page.read_text()) if "://" not in link]
        todo += [(page.parent / link).resolve() for link in links if link]
    lost = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")} - {
        str(path.relative_to(ROOT)) for path in seen if ROOT in path.parents
    }
    assert not lost, f"link these from docs/index.md: {sorted(lost)}"


def test_the_site_has_the_groups_of_the_index() -> None:
    """The site's tabs are the headings of docs/index.md, with the pages that stand there in that order."""
    settings = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2].partition("\nvalidation:")[0]
    tabs = {name: re.findall(r" (\S+\.md)$", text, re.MULTILINE) for name, text in sections(settings)}
    index = (ROOT / "docs" / "index.md").read_text()
    groups = re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", index, re.MULTILINE | re.DOTALL)
    listed = {
        name: [link.removeprefix("../").lower() for link in links_of(text) if link.endswith(".md")]
        for name, text in groups
    }
    assert list(tabs) == list(listed) == ["Start", "Use", "Operate", "Understand", "Experiments"]
    for name, pages in tabs.items():
        assert sorted(set(pages) - {"index.md"}) == sorted(listed[name])


def sections(nav: str) -> list[tuple[str, str]]:
    """Return the tabs of the site's navigation with their text."""
    return re.findall(r"^  - (\w+):\n(.*?)(?=^  - |\Z)", nav, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_lines_are_wrapped(document: Path) -> None:
    """Lines have at most 100 columns; tables, code and long links excepted, and changelog entries."""
    if document.parent.name == "changelog.d":
        return
    text = re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    long = [line for line in text.splitlines() if len(line) > LINE_COLUMNS_MAX]
    assert not [line for line in long if not line.startswith(("|", "`")) and " " in line.strip(" -*")]


def test_every_command_named_exists() -> None:
    """Each `dios COMMAND` and each subcommand in the documents is a command of the program.

    The change log is left out: it has the names that commands had in each release.
    """
    unknown = {
        f"{document.name}: dios {words}"
        for document in DOCUMENTS
        if document.name != "CHANGELOG.md"
        for words in COMMAND.findall(document.read_text())
        if words not in TAGS_OF_DIGESTS and not is_command(words)
    }
    assert not unknown, unknown


def is_command(words: str) -> bool:
    """Return True if ``words`` begin with a command of ``dios``, and with a subcommand where it has some."""
    command = get_command(app)
    for word in words.split():
        if not isinstance(command, TyperGroup):
            return True
        subcommand = command.get_command(typer.Context(command), word)
        if subcommand is None:
            return False
        command = subcommand
    return True

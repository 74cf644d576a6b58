"""``labs/papers/claims.toml`` has all that the papers number, with true states; docs/papers.md shows it."""

from __future__ import annotations

import ast
import importlib
import json
import re
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final

import pytest
import typer
from typer.core import TyperGroup
from typer.main import get_command

from dios.cli.main import app
from dios.firmament.models import catalogue
from labs.papers import claims
from labs.papers.claims import Claim, State
from labs.papers.judgements import Judgement

ROOT: Final = Path(__file__).resolve().parents[2]
MODULE: Final = re.compile(r"(?:dios|labs)(?:\.\w+)+")
FILE: Final = re.compile(r"(?:dios|labs|docs|tests|examples)/[\w/.-]+")
WORDS_MAX: Final = 6_000
"""The length of the page, without the borders of its tables."""

STARTED: Final = (
    *("dios.cli.nodes.daemon", "dios.node.daemon", "dios.firmament.coordinator.main"),
    *("dios.host.process.zygote_main", "dios.client.task_main"),
)
"""The modules with which the processes of a running node begin."""
TESTS_OF_NODES: Final = ("tests/papers/", "tests/integration/", "tests/security/")
"""Tests of nodes, or of the core that a node runs."""
TESTS_OF_RUNNING_NODES: Final = ("tests/integration/", "tests/security/")
NUMBERED: Final = re.compile(r"(?:Figure|Table|Listing|Algorithm|Proposition|Lemma|Corollary) \w")


def numbers(kind: str, chapter: str, last: int) -> list[str]:
    """Return the items ``kind chapter.1`` to ``kind chapter.last``, or ``kind 1`` to ``kind last``."""
    return [f"{kind} {chapter}{at}" for at in range(1, last + 1)]


PAPERS: Final = {
    "Operating system support for warehouse-scale computing": [
        item
        for kind, chapters in {
            "Figure": {"2": 9, "3": 4, "4": 11, "5": 5, "6": 8, "7": 5, "8": 7, "A": 5, "C": 3},
            "Table": {"2": 8, "3": 1, "4": 7, "5": 1, "6": 4, "7": 2, "8": 6, "C": 3},
            "Listing": {"4": 6, "5": 1, "7": 1, "9": 1, "C": 1},
            "Algorithm": {"C": 1},
        }.items()
        for chapter, last in chapters.items()
        for item in numbers(kind, f"{chapter}.", last)
    ],
    "Improving software middleboxes and datacenter task schedulers": [
        *numbers("Figure", "1.", 1),
        *numbers("Figure", "2.", 6),
        *numbers("Figure", "3.", 9),
        *numbers("Figure", "4.", 11),
        *numbers("Table", "3.", 2),
        *numbers("Table", "4.", 1),
        *("Algorithm 1", "Lemma 1", "Corollary 1"),
    ],
    "DC-DRF: adaptive multi-resource sharing at public cloud scale": [
        *numbers("Figure", "", 11),
        *numbers("Table", "", 3),
        *numbers("Algorithm", "", 2),
        *numbers("Lemma", "3.", 2),
    ],
    "Stateful dominant resource fairness": [
        *numbers("Figure", "", 7),
        *numbers("Algorithm", "", 1),
        *numbers("Proposition", "", 6),
    ],
    "The Packer paper": [*numbers("Figure", "", 8), "Table I", *numbers("Algorithm", "", 2)],
}
"""The numbers of each publication, from its lists of figures, tables and listings, and its captions."""

ALL_CLAIMS: Final = [claim for paper in claims.load().papers for claim in paper.claims]


def test_each_number_of_a_paper_has_one_claim() -> None:
    """Figures, tables, algorithms, listings, lemmas: none is missing, listed twice, or invented."""
    listed = {
        paper.title: Counter(
            claim.item for claim in paper.claims if not claim.kind and NUMBERED.match(claim.item)
        )
        for paper in claims.load().papers
    }
    assert listed == {title: Counter(items) for title, items in PAPERS.items()}


def test_each_call_and_attribute_of_the_thesis_has_a_claim() -> None:
    """Appendix B.1 has thirteen sections of calls, Table 4.3 twelve attributes, two pairs of them in one."""
    thesis = list(claims.load().papers[0].claims)
    assert [claim.item for claim in thesis if claim.kind == "call"] == [f"B.1.{at}" for at in range(1, 14)]
    assert len([claim for claim in thesis if claim.kind == "attribute"]) == 10


def test_a_claim_that_is_not_built_has_a_reason_and_others_have_a_place() -> None:
    """A reason has a word at least, and each place is a command, a module or a file."""
    vague = [
        claim
        for claim in ALL_CLAIMS
        if not (claim.note if claim.state is State.NOT_BUILT else claim.at)
        or any(_kind(code) == "unknown" for code in claim.at)
    ]
    assert not vague


def _kind(code: str) -> str:
    if code.startswith("dios "):
        return "command"
    if MODULE.fullmatch(code):
        return "module"
    return "file" if FILE.fullmatch(code) else "unknown"


def _codes(kind: str) -> list[str]:
    return sorted({code for claim in ALL_CLAIMS for code in claim.at if _kind(code) == kind})


def test_each_module_and_file_exists() -> None:
    """A module is a file or folder below ``dios`` or ``labs``; a path is in the repository."""
    gone = [code for code in _codes("module") if code not in modules() and code not in laboratory()]
    gone += [code for code in _codes("file") if not (ROOT / code).exists()]
    assert not gone


@cache
def modules() -> dict[str, Path]:
    """Return the files of the product's modules by their names."""
    return _modules("dios")


@cache
def laboratory() -> dict[str, Path]:
    """Return the files of the laboratory's modules by their names."""
    return _modules("labs")


def _modules(package: str) -> dict[str, Path]:
    paths = (ROOT / package).rglob("*.py")
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in paths
    }


_IMPORT: Final = re.compile(r"^\s*from (dios[\w.]*) import (?:\(([^)]*)\)|(.*))", re.MULTILINE)


@cache
def imported(module: str) -> frozenset[tuple[str, str]]:
    """Return what a module imports from the product anywhere in it, as module and name."""
    return frozenset(
        (source, name.split(" as ")[0].strip())
        for source, several, single in _IMPORT.findall(modules()[module].read_text())
        for name in re.sub(r"#.*", "", several or single).split(",")
        if name.strip()
    )


def home(source: str, name: str) -> str:
    """Return the module that defines a name: packages only pass on the names of their modules."""
    if f"{source}.{name}" in modules():
        return f"{source}.{name}"
    if source in modules() and modules()[source].name == "__init__.py":
        for origin, passed in imported(source):
            if passed == name and origin != source:
                return home(origin, name)
    return source


def reached(names: Iterable[str]) -> set[str]:
    """Return all modules to which imports lead from these."""
    seen: set[str] = set()
    waiting = list(names)
    while waiting:
        module = waiting.pop()
        if module not in seen and module in modules():
            seen.add(module)
            waiting += [home(source, name) for source, name in imported(module)]
    return seen


@cache
def live_modules() -> set[str]:
    """Return the modules of running nodes, the coordinators' cost models included."""
    assert set(STARTED) <= set(modules())
    models = [f"dios.firmament.models.{place.partition(':')[0]}" for place in catalogue._PLACES.values()]
    return reached((*STARTED, *models))


def _marks(test: ast.FunctionDef | ast.AsyncFunctionDef, module: ast.Module) -> str:
    """Return the source of a test's own marks and of those of its module."""
    common = [
        node.value
        for node in module.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    return " ".join(map(ast.unparse, (*common, *test.decorator_list)))


def trouble_with(test: str) -> str:
    """Return the reason why a live claim cannot name this test, or nothing."""
    path, _, name = test.partition("::")
    if not path.startswith(TESTS_OF_RUNNING_NODES) or not (ROOT / path).is_file():
        return "is not in a file of tests of running nodes"
    module = ast.parse((ROOT / path).read_text())
    functions = {
        node.name: node for node in module.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    if not name.startswith("test_") or name not in functions:
        return "is not in its file"
    if re.search(r"mark\.extended(?!\(keep=[1-9])", _marks(functions[name], module)):
        return "is not run by CI"
    return ""


def test_each_live_claim_names_a_test_of_running_nodes_that_ci_runs() -> None:
    """The test exists and is not of the extended tier; claims with other states have none."""
    assert not [claim for claim in ALL_CLAIMS if bool(claim.live_test) is not (claim.state is State.LIVE)]
    named = {claim.live_test for claim in ALL_CLAIMS if claim.live_test}
    assert not {test: trouble for test in named if (trouble := trouble_with(test))}


@pytest.mark.parametrize(
    ("test", "trouble"),
    [
        ("tests/papers/test_figure_4_9.py::test_cell", "is not in a file of tests of running nodes"),
        ("tests/integration/test_client.py::test_nothing", "is not in its file"),
        ("tests/integration/test_dask_suite.py::test_the_cases_that_are_left_out_fail", "is not run by CI"),
        (
            "tests/integration/test_neighbours.py::test_an_innocent_client_is_answered_correctly_next_to_greedy_ones",
            "is not run by CI",
        ),
        ("tests/integration/firmament/test_live_cluster.py::test_the_other_set_ups_place_each_run_once", ""),
    ],
)
def test_a_test_of_another_kind_is_refused(test: str, trouble: str) -> None:
    """Tests of the core alone, absent ones and those of the extended tier; kept cases are run."""
    assert trouble_with(test) == trouble


def _is_live(code: str) -> bool:
    return code in live_modules() or code.startswith(TESTS_OF_NODES)


def test_what_is_live_names_a_module_of_running_nodes_or_a_test_of_them() -> None:
    """Imports lead to the module from a process of a node, or the test has a node."""
    assert not [
        claim for claim in ALL_CLAIMS if claim.state is State.LIVE and not any(map(_is_live, claim.at))
    ]


def test_a_library_is_not_used_by_nodes_or_says_in_which_part() -> None:
    """A claim about the unused part of a live module has a note."""
    library = [claim for claim in ALL_CLAIMS if claim.state is State.LIBRARY and not claim.note]
    assert not [claim for claim in library if all(code in live_modules() for code in claim.at)]


def test_what_is_simulated_names_the_laboratory() -> None:
    """A command ``dios lab`` or a module of ``labs``."""
    simulated = [claim for claim in ALL_CLAIMS if claim.state is State.SIMULATED]
    assert not [claim for claim in simulated if not any(map(_is_of_the_laboratory, claim.at))]


def _is_of_the_laboratory(code: str) -> bool:
    return code.startswith(("dios lab ", "labs."))


@pytest.mark.parametrize(
    "module", ["dios.fairness.live_tree", "dios.sprayer.functions.nat", "dios.lib.mutex"]
)
def test_a_library_is_not_taken_for_live(module: str) -> None:
    """A package that passes on a module's names does not make it live."""
    assert module in modules()
    assert not _is_live(module)


def lookup(words: list[str]) -> str:
    """Return the trouble with the words of a command line, or nothing."""
    command: object = get_command(app)
    context = typer.Context(command, info_name="dios")  # type: ignore[arg-type]
    at = 0
    while isinstance(command, TyperGroup) and at < len(words) and not words[at].startswith("-"):
        command = command.get_command(context, words[at])
        at += 1
    if command is None or isinstance(command, TyperGroup):
        return f"there is no command {' '.join(words[:at])}"
    flags = {flag for parameter in command.params for flag in parameter.opts}  # type: ignore[attr-defined]
    return ", ".join(word for word in words[at:] if word.startswith("--") and word not in flags)


def test_each_command_and_its_figure_exists() -> None:
    """The command is below ``dios``, has the options of its claim, and makes the figures that it names."""
    commands = _codes("command")
    wrong = {code: trouble for code in commands if (trouble := lookup(code.split()[1:]))}
    for code in commands:
        match code.split():
            case ["dios", "lab", "repro", family, *options]:
                evaluation = importlib.import_module(f"labs.papers.{family.replace('-', '_')}.evaluation")
                named = [options[at + 1] for at, word in enumerate(options) if word == "--figure"]
                missing = [number for number in named if number not in evaluation.FIGURES]
                if missing or not named:
                    wrong[code] = f"no figure {missing}"
    assert not wrong


def test_a_command_that_does_not_exist_is_found() -> None:
    """The lookup of the test above refuses what does not exist: a command, a family and an option."""
    assert lookup(["lab", "repro", "nothing"])
    assert lookup(["lab", "repro"])
    assert lookup(["lab", "repro", "sdrf", "--nothing"])
    assert not lookup(["lab", "repro", "sdrf", "--figure", "4"])


def _kept_files() -> dict[str, list[str]]:
    """Return the judgements in each file of the kept results, as the file has them."""
    contents = {path: json.loads(path.read_text()) for path in claims.RESULTS.rglob("*.json")}
    return {
        str(path.relative_to(claims.RESULTS).with_suffix("")): [row["judgement"] for row in content["claims"]]
        for path, content in contents.items()
        if isinstance(content, dict) and "claims" in content
    }


def test_the_verdicts_of_all_papers_are_those_of_the_results() -> None:
    """Each judgement of the kept results counts for one paper."""
    counted = sum((claims.verdicts(paper) for paper in claims.load().papers), Counter[Judgement]())
    assert counted == Counter(judgement for file in _kept_files().values() for judgement in file)


def test_each_judgement_of_the_results_is_at_a_claim() -> None:
    """A reader of the page is led to all that was measured."""
    shown = {kept for claim in ALL_CLAIMS for kept in claims.kept_claims(claim)}
    assert shown == {kept for file in claims.kept_results().values() for kept in file}


def test_each_contradiction_is_explained_once() -> None:
    """With a reason, or with the words that the reason is not known yet."""
    contradicting = [
        kept
        for file in claims.kept_results().values()
        for kept in file
        if kept.verdict is Judgement.CONTRADICTS
    ]
    explained = [kept for entry in claims.load().explanations for kept in claims.contradictions(entry)]
    assert Counter(explained) == Counter(contradicting)
    assert all(len(entry.text.split()) > 5 for entry in claims.load().explanations)


def test_each_explanation_is_about_a_contradiction() -> None:
    """Each result and each claim that it names contradicts."""
    for entry in claims.load().explanations:
        contradicting = claims.contradictions(entry)
        assert {kept.result for kept in contradicting} == set(entry.results)
        assert all(any(kept.subject.startswith(start) for kept in contradicting) for start in entry.claims)


def test_the_page_is_what_the_claims_and_results_say() -> None:
    """``python -m labs.papers.claims`` writes it."""
    assert claims.PAGE.read_text() == claims.page()


def test_the_page_stays_short() -> None:
    """It is read by people."""
    assert len(claims.PAGE.read_text().replace("|", " ").split()) <= WORDS_MAX


def test_a_figure_shows_the_verdicts_about_itself_alone() -> None:
    """A result with several figures is divided among them."""
    figure = Claim("Figure 9", "", State.LIBRARY, ("dios lab repro dc-drf --figure 8",))
    passages = {kept.passage for kept in claims.kept_claims(figure)}
    assert passages == {"section 5.4, Figure 9"}

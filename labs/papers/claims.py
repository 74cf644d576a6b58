"""Every claim of the papers with its state here, and ``docs/papers.md``, which is written from them.

``claims.toml`` has the claims. Published values, our values and verdicts are not in it: they are read from
the kept results (``labs/benchmarks/results``), to which a claim leads by the command that repeats it.

``python -m labs.papers.claims`` writes the page, and with ``--json`` prints all claims with their values.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from labs.papers.judgements import Judgement

ROOT: Final = Path(__file__).resolve().parents[2]
DATA: Final = Path(__file__).with_name("claims.toml")
PAGE: Final = ROOT / "docs" / "papers.md"
RESULTS: Final = ROOT / "labs" / "benchmarks" / "results"

FOLDERS: Final = {
    "dios": "dios-repro",
    "interference": "interference",
    "firmament": "firmament",
    "sdrf": "fairness-sdrf",
    "dc-drf": "fairness-dc-drf",
    "packer": "packer-repro",
    "sprayer": "sprayer-repro",
}
"""The folder of kept results of each family of ``dios lab repro``."""

COLUMNS: Final = 100
"""The width of the page's prose."""

_SIZES: Final = ("size", "trace", "data centre", "work", "machines")
"""The settings that give the size of an experiment."""
_DATE: Final = re.compile(r"Measured on (\d+ \w+ \d{4})")
_NUMBERED: Final = re.compile(r"(?:Figure|Table) [\w.]*\d")


class State(StrEnum):
    """The place of a mechanism in the project."""

    LIVE = "live"
    """A node, a coordinator, or a task's process uses it."""
    LIBRARY = "library"
    """A program or a command uses it, and no node does."""
    SIMULATED = "simulated"
    """Only the laboratory plays or measures it."""
    NOT_BUILT = "not built"


class Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A figure, mechanism, call or other claim of a paper, and its counterpart."""

    item: str
    """Its number: a figure, table, section, equation or proposition."""
    subject: str
    state: State
    at: tuple[str, ...] = ()
    """Commands, modules and files."""
    note: str = ""
    """The reason where nothing was built, else a difference."""
    kind: str = ""
    """The kind, where the number does not say it."""
    live_test: str = ""
    """The test in which running nodes show it, as ``tests/FILE.py::TEST``; for live claims alone."""
    result_item: str = ""
    """The number in the kept results, if another paper numbers them."""

    @property
    def full_kind(self) -> str:
        """The kind: ``figure``, ``mechanism``, ``call`` or another one."""
        numbered = re.match(r"[A-Z][a-z]+", self.item)
        return self.kind or (numbered[0].lower() if numbered else "mechanism")


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Some chapters of a paper."""

    title: str
    claims: tuple[Claim, ...]


class Publication(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A publication, the families of ``dios lab repro`` that repeat it, and its claims."""

    title: str
    short: str
    source: str
    families: tuple[str, ...]
    sections: tuple[Section, ...]

    @property
    def claims(self) -> Iterator[Claim]:
        """All its claims."""
        return (claim for section in self.sections for claim in section.claims)


class Explanation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The reason why results contradict a paper, or the plan to find it."""

    results: tuple[str, ...]
    """Kept results, as ``dios-repro/figure-5.1``."""
    claims: tuple[str, ...]
    """The beginnings of the claims' texts in these results."""
    text: str


class Claims(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    papers: tuple[Publication, ...]
    explanations: tuple[Explanation, ...]


class KeptClaim(NamedTuple):
    """A published value, ours, and the verdict, from a kept result."""

    result: str
    """The file in the results, without its suffix."""
    passage: str
    subject: str
    published: str
    ours: str
    verdict: Judgement
    command: str
    seeds: str
    machine: str
    size: str
    date: str
    """Empty where the result does not record it."""


@cache
def load() -> Claims:
    """Return the claims; raise ``msgspec.ValidationError`` if the file is not valid."""
    return msgspec.convert(tomllib.loads(DATA.read_text()), Claims)


class _FileClaim(msgspec.Struct, frozen=True):
    """A judged claim in a file of results."""

    passage: str = msgspec.field(name="where")
    subject: str = msgspec.field(name="what")
    published: str
    ours: str
    judgement: Judgement


class _File(msgspec.Struct, frozen=True):
    """The part of a file of results that is read here (``labs.papers.figures.FigureRow``)."""

    command: str
    seed: int
    setting: dict[str, str]
    claims: tuple[_FileClaim, ...]
    notes: tuple[str, ...]


@cache
def kept_results() -> dict[str, tuple[KeptClaim, ...]]:
    """Return the judged claims of all kept results of ``dios lab repro``, by result."""
    paths = sorted(path for folder in FOLDERS.values() for path in (RESULTS / folder).rglob("*.json"))
    return {
        (name := str(path.relative_to(RESULTS).with_suffix(""))): tuple(
            _kept(name, msgspec.json.decode(path.read_bytes(), type=_File))
        )
        for path in paths
    }


def _kept(name: str, file: _File) -> Iterator[KeptClaim]:
    dates = _DATE.findall(" ".join(file.notes))
    for claim in file.claims:
        yield KeptClaim(
            name,
            *(claim.passage, claim.subject, claim.published, claim.ours, claim.judgement),
            *(file.command, file.setting.get("seeds", str(file.seed)), file.setting.get("machine", "")),
            "; ".join(file.setting[key] for key in _SIZES if key in file.setting),
            file.setting.get("date", dates[0] if dates else ""),
        )


def results_of(command: str) -> list[str]:
    """Return the kept results of a command, none if it is not ``dios lab repro`` or was not kept."""
    match command.split():
        case ["dios", "lab", "repro", family, *options]:
            folder = f"{FOLDERS[family]}/large" if "--large" in options else FOLDERS[family]
            names = [options[at + 1] for at, word in enumerate(options) if word == "--figure"]
            results = [f"{folder}/figure-{name}" for name in names]
            return [result for result in results if result in kept_results()]
    return []


def kept_claims(claim: Claim) -> list[KeptClaim]:
    """Return what the kept results say about a claim.

    A result often has several figures. A figure or table leaves out what the result states about others.
    """
    item = claim.result_item or claim.item
    own = re.compile(re.escape(item) + r"(?![\d.])")
    return [
        kept
        for command in claim.at
        for result in results_of(command)
        for kept in kept_results()[result]
        if not _NUMBERED.match(item) or own.search(kept.passage) or not _NUMBERED.search(kept.passage)
    ]


def verdicts(paper: Publication) -> Counter[Judgement]:
    """Return the number of each verdict in the kept results of a paper."""
    folders = tuple(f"{FOLDERS[family]}/" for family in paper.families)
    return Counter(
        kept.verdict
        for result, claims in kept_results().items()
        if result.startswith(folders)
        for kept in claims
    )


def _explains(explanation: Explanation, kept: KeptClaim) -> bool:
    return kept.result in explanation.results and kept.subject.startswith(explanation.claims)


def contradictions(explanation: Explanation) -> list[KeptClaim]:
    """Return the contradictions that an explanation is about."""
    return [
        kept
        for result in explanation.results
        for kept in kept_results().get(result, ())
        if kept.verdict is Judgement.CONTRADICTS and _explains(explanation, kept)
    ]


_VERDICT_WORDS: Final = {
    Judgement.AGREES: "agree",
    Judgement.STRONGER: "stronger",
    Judgement.WEAKER: "weaker",
    Judgement.CONTRADICTS: "contradict",
    Judgement.NOT_JUDGED: "not judged",
    Judgement.OURS: "own",
}


def _verdict(claim: Claim) -> str:
    by_result: dict[str, Counter[Judgement]] = {}
    for kept in kept_claims(claim):
        by_result.setdefault(kept.result, Counter())[kept.verdict] += 1
    return "; ".join(f"[{_counted(count)}]({_link(result)})" for result, count in by_result.items())


def _counted(count: Counter[Judgement]) -> str:
    return ", ".join(f"{count[verdict]} {word}" for verdict, word in _VERDICT_WORDS.items() if count[verdict])


def _link(result: str) -> str:
    return f"../labs/benchmarks/results/{result}.md"


def _place(claim: Claim) -> str:
    codes = ", ".join(f"`{code}`" for code in claim.at)
    return f"{codes}: {claim.note}" if codes and claim.note else codes or claim.note


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]], *, numbers: bool = False) -> list[str]:
    marks = ("---", *("--:" if numbers else "---" for _ in head[1:]))
    return ["|" + "|".join(cells) + "|" for cells in (head, marks, *rows)]


def _prose(text: str, *, bullet: bool = False) -> str:
    return textwrap.fill(
        text,
        COLUMNS,
        initial_indent="- " if bullet else "",
        subsequent_indent="  " if bullet else "",
        break_long_words=False,
        break_on_hyphens=False,
    )


_INTRODUCTION: Final = """\
DIOS implements five publications. This page lists their claims: figures, tables, algorithms, calls,
attributes, equations, propositions and mechanisms. `python -m labs.papers.claims` writes it from
`labs/papers/claims.toml` and the kept results; with `--json` it prints every claim with the published value,
ours, date, machine, size and seeds. `tests/unit/test_papers.py` compares the claims with the papers' own
lists, and looks up commands, modules and files.

A state is `live` if a node, a coordinator or a task's process uses the mechanism, all cost models included,
of which an operator chooses one; `library` if programs or commands use it, and no node does; `simulated` if
only the laboratory (`dios lab`) plays or measures it; `not built` with the reason."""

_ABOUT_VERDICTS: Final = (
    "The numbers of [judgements](experiments.md#reading-a-claim) in the kept results. Chapter 4 of the "
    "Sprayer thesis is the SDRF paper, with which its results are counted. `own` are our additions."
)

_ABOUT_LIVE_TESTS: Final = (
    "Each live claim names a test in which running nodes show it (`live_test`, in the JSON): {tests} tests, "
    "which CI runs."
)


def page() -> str:
    """Return the page."""
    papers = load().papers
    lines = ["# The claims of the papers", ""]
    for text in _INTRODUCTION.split("\n\n"):
        lines += [_prose(text), ""]
    lines += ["## Verdicts", "", _prose(_ABOUT_VERDICTS), ""]
    counts = {paper.short: verdicts(paper) for paper in papers}
    total = sum(counts.values(), Counter[Judgement]())
    lines += _table(
        ("paper", *_VERDICT_WORDS.values()),
        (
            (name, *(str(count[judgement]) for judgement in _VERDICT_WORDS))
            for name, count in {**counts, "all": total}.items()
        ),
        numbers=True,
    )
    states = {paper.short: Counter(claim.state for claim in paper.claims) for paper in papers}
    lines += [
        "",
        *_table(
            ("paper", *State, "claims"),
            (
                (name, *(str(count[state]) for state in State), str(count.total()))
                for name, count in {**states, "all": sum(states.values(), Counter[State]())}.items()
            ),
            numbers=True,
        ),
    ]
    tests = len({claim.live_test for paper in papers for claim in paper.claims if claim.live_test})
    lines += ["", _prose(_ABOUT_LIVE_TESTS.format(tests=tests))]
    lines += [
        "",
        "## Contradictions",
        "",
        "Explanations follow the numbers; some are still missing, and say so.",
        "",
    ]
    for before, explanation in zip((None, *load().explanations), load().explanations, strict=False):
        lines += _explained(explanation, headed=before is None or before.results != explanation.results)
    for paper in papers:
        lines += [f"## {paper.title}", "", _prose(paper.source), ""]
        for section in paper.sections:
            if len(paper.sections) > 1:
                lines += [f"### {section.title}", ""]
            rows = (
                (claim.item, claim.subject, claim.state, _place(claim), _verdict(claim))
                for claim in section.claims
            )
            lines += [*_table(("item", "subject", "state", "where", "verdict"), rows), ""]
    return "\n".join(lines)


def _explained(explanation: Explanation, *, headed: bool) -> Iterator[str]:
    kept = contradictions(explanation)
    for result in explanation.results:
        own = [entry for entry in kept if entry.result == result]
        if headed:
            date = f"measured on {own[0].date}" if own[0].date else ""
            facts = (own[0].machine, own[0].size, f"seeds {own[0].seeds}", date)
            yield _prose(f"**[{result}]({_link(result)})** ({'; '.join(fact for fact in facts if fact)})")
            yield ""
        for entry in own:
            yield _prose(f"{entry.subject}: published {entry.published}; here {entry.ours}", bullet=True)
        yield ""
    yield from (_prose(explanation.text), "")


def as_rows() -> list[dict[str, object]]:
    """Return all claims with their kept values, as JSON objects."""
    return [
        {
            "paper": paper.short,
            "section": section.title,
            **msgspec.to_builtins(claim),
            "kind": claim.full_kind,
            "kept": [kept._asdict() for kept in kept_claims(claim)],
        }
        for paper in load().papers
        for section in paper.sections
        for claim in section.claims
    ]


if __name__ == "__main__":
    if "--json" in sys.argv[1:]:
        json.dump(as_rows(), sys.stdout, indent=1, ensure_ascii=False)
    else:
        PAGE.write_text(page())

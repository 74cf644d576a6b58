"""The page about a decision has every part of the answer, and shows text of others as text."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from typer.testing import CliRunner

from dios.cli.main import app
from dios.web.report.decision import decision_page
from tests.support.web.elements import Elements

EVIL: Final = "</title></svg><script>alert(1)</script><img src=http://x onerror=y>\"'&\x1b[2J\u202e"
S: Final = 1_000_000_000


def _answer(word: str) -> dict[str, object]:
    return {
        "task": "aa00",
        "label": word,
        "node": word,
        "phase": word,
        "model": word,
        "lines": [word, "in words"],
        "explanation": {
            "task": 77,
            "status": "waits",
            "reason": word,
            "round": 5,
            "cost": 12,
            "path": [
                {"source": "task 77", "target": word, "cost": 9},
                {"source": word, "target": "sink", "cost": 3},
            ],
            "places": [{"name": word, "cost": 40, "against_chosen": 28, "free_slots": 2, "remark": word}],
            "total_machines": 9,
            "excluded": [{"machines": 3, "reason": word, "names": [word, "n2"]}],
            "binding": word,
            "enough": [{"text": word}],
        },
    }


def test_the_page_has_all_parts_and_no_markup_of_others() -> None:
    """Path, other machines, excluded ones with names, limits and words; hostile text adds no element."""
    page = decision_page(_answer(EVIL), 9 * S, (EVIL, "uid:5/payroll"))
    elements = Elements()
    elements.feed(page)
    assert not elements.tags & {"script", "img", "link", "iframe", "object", "a"}
    assert not {name for name in elements.attributes if name.startswith("on") or name in {"src", "href"}}
    assert not set(page) & {"\x1b", "\u202e"}
    assert page.count("&lt;script&gt;") > 8
    for words in ("task aa00", "+28", "2 slots free", "and 1 more", "bottleneck", "12 in all", "/payroll"):
        assert words in page


def test_a_run_in_a_start_queue_has_a_page_without_machines() -> None:
    """Without an explanation of the scheduler, and with a malformed one, the words are left."""
    malformed: dict[str, object] = {"path": [3], "places": "x", "excluded": {}, "enough": None}
    for explanation in (None, malformed):
        page = decision_page(_answer("x") | {"explanation": explanation}, 9 * S)
        assert "in words" in page
        assert "<svg" not in page


def test_a_picture_is_not_written_over(tmp_path: Path) -> None:
    """The command refuses before it asks a node, and names the option that allows it."""
    page = tmp_path / "why.html"
    page.write_text("mine")
    result = CliRunner().invoke(app, ["explain", "aa", "--picture", str(page), "--node", str(tmp_path)])
    assert result.exit_code == 1
    assert "--force" in result.output
    assert page.read_text() == "mine"

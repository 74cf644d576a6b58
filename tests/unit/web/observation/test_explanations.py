"""The reason against a machine comes from the part of the explanation that names it."""

from __future__ import annotations

from dios.web.observation.explanations import why_not

ANSWER = {
    "node": "n1",
    "lines": ["its turn\x1b"],
    "explanation": {
        "status": "runs",
        "reason": "on n1",
        "places": [
            {"name": "n2", "cost": 9, "against_chosen": -3, "free_slots": 2, "full": "", "remark": ""}
        ],
        "excluded": [{"machines": 2, "reason": "lack gpu=yes", "names": ["n3"]}],
    },
}


def test_each_machine_has_its_reason() -> None:
    """The present machine, one with a path, an excluded one, and one that is not named."""
    assert why_not(ANSWER, "n1") == "It runs there: on n1"
    assert why_not(ANSWER, "n2").startswith(
        "It could run there at a cost of 9, 3 less than its present path; 2 "
    )
    assert why_not(ANSWER, "n3") == "It cannot run there: lack gpu=yes."
    assert "2: lack gpu=yes" in why_not(ANSWER, "n4")


def test_without_an_explanation_the_words_are_left() -> None:
    """A task that takes no part in rounds has lines, which are harmless; an error is told."""
    assert why_not(ANSWER | {"explanation": None}, "n1") == "its turn\\x1b"
    assert why_not({"error": "no scheduler"}, "n1") == "Unknown: no scheduler"
    assert why_not({}, "n1") == "Unknown."

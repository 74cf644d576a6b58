"""``dios lab compare``: every model over one workload, in one table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dios.cli import main
from dios.errors import InvalidError
from dios.firmament.models.catalogue import MODELS
from labs.simulate.scheduling.command import SimulationOptions
from labs.simulate.scheduling.compare import COLUMNS, COMPARED_MAX, compare, models_of
from tests.support.node.command_user import require_schema

SAMPLE = Path(__file__).parents[3] / "data" / "google-trace"
TINY = ("--synthetic", "google", "--machines", "3", "--hours", "0.01")


def invoke(*words: str) -> tuple[int, str, str]:
    """Exit status and output of ``dios lab compare``."""
    result = CliRunner().invoke(main.app, ["lab", "compare", *words])
    return result.exit_code, result.stdout, result.stderr


def test_without_a_choice_all_models_and_the_queues_are_compared() -> None:
    """The catalogue and both baselines, each once."""
    assert models_of([]) == ["queue", "queue-load", *MODELS]
    with pytest.raises(InvalidError, match="once"):
        models_of(["quincy", "quincy"])
    with pytest.raises(InvalidError, match=str(COMPARED_MAX)):
        models_of([f"{number}.py" for number in range(COMPARED_MAX + 1)])


def test_the_models_see_the_same_tasks_of_a_trace() -> None:
    """One table with a row for each model; all of them get the tasks of the trace."""
    words = ("--trace", str(SAMPLE), "--hours", "0.2", "--round-interval", "20", "--json")
    status, shown, said = invoke(*words, "--model", "queue", "--model", "hawk")
    assert status == 0, said
    require_schema("dios lab compare", shown)
    outcomes = json.loads(shown)
    assert [outcome["model"] for outcome in outcomes] == ["queue", "hawk"]
    assert outcomes[0]["summary"]["submitted"] == outcomes[1]["summary"]["submitted"] > 0
    assert "2 of 2: hawk" in said


def test_the_table_is_written_with_pictures(tmp_path: Path) -> None:
    """--out has the table for readers and the numbers for programs; --plots draws the waits."""
    words = (*TINY, "--model", "queue", "--model", "spread", "--out", str(tmp_path), "--plots")
    status, shown, said = invoke(*words)
    assert status == 0, said
    text = (tmp_path / "compare.md").read_text()
    assert all(word in shown and word in text for word in ("queue", "spread", *COLUMNS[:3]))
    assert [outcome["model"] for outcome in json.loads((tmp_path / "compare.json").read_text())] == [
        "queue",
        "spread",
    ]
    assert [picture.name for picture in tmp_path.glob("*.png")] == ["compare-waits-1.png"]


def test_a_wrong_option_ends_the_comparison_before_the_first_model() -> None:
    """Nothing runs if one of the models does not exist."""
    begun: list[str] = []
    options = SimulationOptions(synthetic="google", machines=3, hours=0.01)
    with pytest.raises(InvalidError, match="quinsy"):
        list(compare(options, ["queue", "quinsy"], lambda name, _: begun.append(name), None))
    assert begun == []


def test_a_model_that_fails_leaves_the_others_in_the_table(tmp_path: Path) -> None:
    """The row of a model that raises in each round has its faults; the next model runs."""
    bad = tmp_path / "bad.py"
    bad.write_text(
        "from dios.firmament.models.base import BaseModel\n\n\n"
        "class Bad(BaseModel):\n    name = 'bad'\n    summary = 'raises'\n\n"
        "    def begin(self, state):\n        raise ValueError('on purpose')\n"
    )
    options = SimulationOptions(synthetic="google", machines=3, hours=0.01)
    outcomes = list(compare(options, [str(bad), "queue"], lambda *_: None, None))
    assert "on purpose" in outcomes[0].failure
    assert outcomes[1].summary is not None
    assert not outcomes[1].failure

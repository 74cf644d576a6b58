"""Options and arguments of commands, alone and in groups."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from dios.cli.common.application import CommandApplication
from dios.cli.common.options import Options, argument, option


class Needs(Options, section="Its needs"):
    """A group of options."""

    cpus: float = option("--cpus N", "Processors.", default=1.0, min=0)
    near: list[str] | None = option("--near NAME", "Objects.")
    batch: bool = option("--long-running/--batch", "For ever, or to its end.")


def called(*words: str) -> tuple[int, str, dict[str, object]]:
    """Call a command with these words; return its exit status, its output, and the values that it got."""
    values: dict[str, object] = {}
    app = CommandApplication()

    @app.command(examples="dios work here")
    def work(
        file: Path = argument("FILE", "A file."),
        place: str = argument("[PLACE]", "A place."),
        *,
        title: str = option("-t --title TEXT", "A title.", required=True),
        force: bool = option("--force", "Write over a file."),
        needs: Needs,
    ) -> None:
        """Work."""
        values.update(file=file, place=place, title=title, force=force, **vars(needs))

    result = CliRunner().invoke(app, [*words])
    return result.exit_code, result.output, values


def test_a_default_follows_from_the_type() -> None:
    """What is not given is False, an empty text or None, as the type says, or the default that is."""
    status, output, values = called("a.py", "-t", "x")
    assert (status, output) == (0, "")
    assert values == {
        "file": Path("a.py"),
        "place": "",
        "title": "x",
        "force": False,
        "cpus": 1.0,
        "near": None,
        "batch": False,
    }


@pytest.mark.parametrize("words", [["a.py"], ["-t", "x"]], ids=["option", "argument"])
def test_what_has_no_default_is_required(words: list[str]) -> None:
    """A required option, and an argument without brackets, are errors if they are left out."""
    assert called(*words)[0] == 2


def test_the_options_of_a_group_are_in_its_section() -> None:
    """`--help` has the options of the command, and `--help-all` those of the group below their heading."""
    assert "--near" not in called("--help")[1]
    text = called("--help-all")[1]
    assert "-t, --title TEXT" in text
    assert "--cpus N" in text.partition("Its needs:")[2]


def test_a_group_knows_what_was_given() -> None:
    """The options that differ from their defaults are listed by their names on the command line."""
    assert Needs().given() == {}
    assert Needs(near=["a"], batch=True, cpus=1.0).given() == {"--near": ["a"], "--long-running": True}


def test_a_declaration_without_sense_is_refused() -> None:
    """A group refuses an option that it does not have, and an option needs a name."""
    with pytest.raises(TypeError, match="Needs has no option memory"):
        Needs(memory=1)
    with pytest.raises(ValueError, match="'FILE' begins with no name"):
        option("FILE", "A file.")

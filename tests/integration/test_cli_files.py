"""Files that cannot be stored, read or written as asked: the commands say which, why and what to do."""

from __future__ import annotations

import ast
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from dios.cli.common.context import CommandContext, opened
from dios.errors import Conflict, InvalidError, UnreachableError
from dios.lib.catalogue import CatalogueEntry
from tests.support.node.command_user import Person

CLI = Path(__file__).parents[2] / "dios" / "cli"


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    """A person with a node, a group, and a directory in it."""
    someone = Person(tmp_path_factory.mktemp("home"))
    someone.types("dios-node start --data ./node0 --detach --pool-size 0")
    try:
        someone.types("dios group create g")
        (someone.home / "data").mkdir()
        someone.writes("data/a.txt", "kept")
        someone.types("dios put data --recursive --group g")
        yield someone
    finally:
        someone.types("dios-node stop")


@pytest.mark.parametrize("command", ["dios put mixed --recursive --group g", "dios sync ./mixed g/mixed"])
def test_what_cannot_be_stored_blocks_nothing_else(person: Person, command: str) -> None:
    """A name that is not UTF-8, a pipe, a socket and a link to nothing are named; the rest is stored."""
    folder = person.home / "mixed" / "deep"
    if not folder.exists():
        folder.mkdir(parents=True)
        (folder / "good.txt").write_text("good")
        Path(os.fsdecode(os.fsencode(folder) + b"/na\xefve.txt")).write_text("x")
        Path(os.fsdecode(os.fsencode(folder) + b"/\xff")).mkdir()
        os.mkfifo(folder / "pipe")
        (folder / "gone").symlink_to("nowhere")
        with socket.socket(socket.AF_UNIX) as listener, pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            listener.bind("socket")
    told = person.types(command, status=1).stderr
    assert "mixed/deep/na\\xefve.txt: its name is not UTF-8" in told
    assert "mixed/deep/\\xff: its name is not UTF-8" in told
    assert "mixed/deep/gone: it is a link to nothing" in told
    assert "mixed/deep/pipe: it is no regular file" in told
    assert "mixed/deep/socket: it is no regular file" in told
    assert "--as" not in told, "another path does not help within a directory"
    assert person.types("dios get g/mixed/deep/good.txt").stdout == "good"


def test_a_single_name_that_is_no_text_is_put_under_another(person: Person) -> None:
    """The advice for a single file is one that works."""
    name = os.fsdecode(b"b\xe9.txt")
    person.writes(name, "other")
    assert "--as PATH" in person.types("dios put --group g", name, status=1).stderr
    person.types("dios put --group g --as b.txt", name)
    assert person.types("dios get g/b.txt").stdout == "other"


@pytest.mark.parametrize("name", ["data", "g/data", "g"])
@pytest.mark.parametrize("command", ["dios get", "dios stat"])
def test_a_directory_is_told_as_one(person: Person, command: str, name: str) -> None:
    """A directory where a file is needed is not missing: the path for --recursive is named."""
    told = person.types(command, name, status=1).stderr
    assert "is a directory" in told
    assert "--recursive" in told
    assert f"dios ls {name if name.startswith('g') else 'g/data'}" in told


def test_stat_explains_what_it_shows(person: Person) -> None:
    """The counters of our buffers are shown to those who ask for them, with their meaning."""
    plain = person.types("dios stat g/data/a.txt").stdout
    assert "4 bytes" in plain
    assert "v_r" not in plain.lower()
    assert "a_w" not in plain.lower()
    told = person.types("dios stat g/data/a.txt -v").stdout
    assert "writes       committed (v_w): 0, active (a_w): 0" in told


def test_the_classes_of_interference_are_explained(person: Person) -> None:
    """The help says which class of a run disturbs its neighbours little, and which much."""
    told = " ".join(person.types("dios run --help-all").stdout.split())
    assert "turtle (little), sheep, rabbit, devil (much)" in told


def test_errors_name_the_output_that_was_asked_for(person: Person) -> None:
    """A missing folder and a full device are named, and no temporary file."""
    told = person.types("dios get g/data/a.txt --output /nosuchdir/x", status=1).stderr
    assert told == "dios get: /nosuchdir: No such file or directory\n"
    told = person.types("dios get g/data/a.txt --output /dev/full", status=1).stderr
    assert told == "dios get: /dev/full: No space left on device\n"


def test_a_group_whose_paths_could_not_be_given_is_refused(person: Person) -> None:
    """An alias with a slash is refused with another one, by every command that gives a group its alias."""
    assert "like a-b" in person.types("dios group create a/b", status=1).stderr
    grant = person.types("dios group share g --with", f"uid:{os.getuid() + 1}", "--read").stdout.strip()
    assert "like x-y" in person.types("dios group accept", grant, "--as", "x/y", status=1).stderr


def calls_outside_of_naming(tree: ast.AST, *, is_named: bool = False) -> Iterator[int]:
    """Yield the lines on which a command writes a file whose path an error would not have."""
    for child in ast.iter_child_nodes(tree):
        named = is_named or (
            isinstance(child, ast.With)
            and any("naming" in ast.dump(item.context_expr) for item in child.items)
        )
        if not named and isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute):
            modes = [arg.value for arg in child.args if isinstance(arg, ast.Constant)]
            # The text of a page of help goes to no file.
            is_help = isinstance(child.func.value, ast.Name) and child.func.value.id == "formatter"
            opens = child.func.attr == "open" and any(str(mode)[:1] in "wx" for mode in modes if mode)
            if opens or (child.func.attr == "write_text" and not is_help):
                yield child.lineno
        yield from calls_outside_of_naming(child, is_named=named)


def test_every_command_names_the_file_that_it_writes() -> None:
    """Commands write files through ``write_file``, or within ``naming``."""
    unnamed = [
        f"{path.relative_to(CLI)}:{line}"
        for path in sorted(CLI.rglob("*.py"))
        for line in calls_outside_of_naming(ast.parse(path.read_text()))
    ]
    assert not unnamed


def test_a_file_is_not_called_absent_while_a_list_cannot_be_read(
    person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be in that list. In a group whose list can be read it is absent."""
    monkeypatch.delenv("XDG_CONFIG_HOME")
    for variable, value in person.environment.items():
        monkeypatch.setenv(variable, value)
    person.types("dios group create far")
    readable = CommandContext._readable_entries

    def entries(place: CommandContext, alias: str) -> tuple[CatalogueEntry, ...]:
        if alias == "far":
            raise UnreachableError("n2 does not answer")
        return readable(place, alias)

    monkeypatch.setattr(CommandContext, "_readable_entries", entries)
    with opened(str(person.home / "node0")) as place:
        with pytest.raises(InvalidError, match="there is no file 'lost' in group g"):
            place.find("lost", "g")
        with pytest.raises(Conflict, match="Unread, group far: n2 does not answer"):
            place.find("lost")
        assert place.find("data/a.txt", "g")[1] is not None

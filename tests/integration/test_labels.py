"""Secrecy labels as a user meets them: the example, the commands, and a restart of the node."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.node.command_user import Person
from tests.support.node.confinement import mechanisms_or_skip

pytestmark = pytest.mark.long

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_the_example_runs(tmp_path: Path) -> None:
    """examples/labels.py: the first program releases nothing, the second the sum alone."""
    mechanisms_or_skip()
    done = subprocess.run(
        [sys.executable, EXAMPLES / "labels.py"],
        cwd=tmp_path,
        env=Person(tmp_path).environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, refused, last = done.stdout.splitlines()
    assert first == "public: nothing"
    assert "the task has read" in refused
    assert "payroll" in refused
    assert last == "public: 9300"


def test_the_commands_show_and_keep_labels(tmp_path: Path) -> None:
    """What is put with a label has it after a restart; an output of a run that has read it needs it, too."""
    mechanisms_or_skip()
    person = Person(tmp_path)
    (tmp_path / "pay.csv").write_text("4100 5200")
    (tmp_path / "passes.py").write_text("open('/outputs/out', 'w').write(open('/inputs/pay').read())")
    person.types("dios-node start --data ./node0 --detach")
    try:
        person.types("dios group create hr")
        person.types("dios put pay.csv --group hr --secrecy payroll")
        person.types("dios-node stop")
        person.types("dios-node start --data ./node0 --detach")
        (tag,) = json.loads(person.types("dios stat hr/pay.csv --json").stdout)["secrecy"]
        assert tag.endswith("/payroll")
        assert "payroll" in person.types("dios stat hr/pay.csv").stdout
        run = "dios run passes.py -g hr --input pay=pay.csv --output out=copy.csv"
        failed = person.types(run, status=1)
        assert "the task has read" in failed.stdout + failed.stderr
        person.types(f"{run} --secrecy payroll")
        assert person.types("dios get hr/copy.csv").stdout == "4100 5200"
        assert json.loads(person.types("dios stat hr/copy.csv --json").stdout)["secrecy"] == [tag]
        person.types(f"{run.replace('copy.csv', 'open.csv')} --may-declassify payroll")
        assert json.loads(person.types("dios stat hr/open.csv --json").stdout)["secrecy"] == []
        refused = person.types("dios run passes.py --input pay=pay.csv --secrecy payroll", status=125)
        assert "add --output" in refused.stderr
        person.types("dios backup keygen ./backup.key")
        person.types("dios backup create ./backups --group hr --recipient backup.key.pub")
        person.types("dios group rm hr --all --yes")
        person.types("dios backup restore ./backups --key backup.key")
        assert json.loads(person.types("dios stat hr/copy.csv --json").stdout)["secrecy"] == [tag]
        assert json.loads(person.types("dios stat hr/open.csv --json").stdout)["secrecy"] == []
    finally:
        person.types("dios-node stop")


def test_what_is_stored_in_a_labelled_group_has_its_label(tmp_path: Path) -> None:
    """Files, outputs of runs and logs get the tags of the group; logs keep them in a backup."""
    mechanisms_or_skip()
    person = Person(tmp_path)
    (tmp_path / "pay").mkdir()
    (tmp_path / "pay" / "may.csv").write_text("4100 5200")
    (tmp_path / "passes.py").write_text("open('/outputs/out', 'w').write(open('/inputs/pay').read())")
    person.types("dios-node start --data ./node0 --detach")

    def label(path: str) -> list[str]:
        labels: list[str] = json.loads(person.types(f"dios stat {path} --json").stdout)["secrecy"]
        return labels

    try:
        (tag,) = json.loads(person.types("dios group create hr --secrecy payroll --json").stdout)["secrecy"]
        assert "no secrecy tag" in person.types("dios group create hr2 --secrecy Pay!", status=1).stderr
        person.types("dios sync ./pay hr --secrecy board")
        assert label("hr/may.csv") == [tag.replace("payroll", "board"), tag]
        person.types("dios run passes.py -g hr --input pay=hr/may.csv --output out=out.csv", status=1)
        person.types("dios put pay/may.csv --group hr --as may.csv --replace")
        assert label("hr/may.csv") == [tag]
        person.types("dios run passes.py -g hr --input pay=hr/may.csv --output out=out.csv")
        assert label("hr/out.csv") == [tag]
        assert f" {tag}" in person.types("dios ps --all").stdout
        for command in ("dios ls", "dios ls hr"):
            assert f"group hr is labelled {tag}" in person.types(command).stderr
            (first, _) = json.loads(person.types(f"{command} --json").stdout)
            assert first["group_secrecy"] == [tag]
        person.types("dios journal create events --group hr")
        person.types("dios backup keygen ./backup.key")
        person.types("dios backup create ./backups --group hr --recipient backup.key.pub")
        person.types("dios group rm hr --all --yes")
        person.types("dios backup restore ./backups --key backup.key")
        assert label("hr/events") == [tag]
    finally:
        person.types("dios-node stop")


CAT = """
import dios
from dios.lib.files.groups import files_for_task

program = b'''
from dios.lib.files.filesystem import DiosFileSystem
print(DiosFileSystem().cat_file("dios://hr/pay.csv"), DiosFileSystem().cat_file("dios://hr/none.csv"))
'''
with dios.connect(groups=["hr"]) as node:
    groups, inputs = files_for_task(node, "hr")
    task = node.run(program, groups=groups, inputs=inputs)
    print(task.wait(60).secrecy, b"".join(task.console()).decode())
"""


def test_a_task_reads_labelled_files_whose_sizes_it_does_not_know(tmp_path: Path) -> None:
    """It gets the tags and the bytes; a session that may not read them is told so, and of no damage."""
    mechanisms_or_skip()
    person = Person(tmp_path)
    (tmp_path / "pay.csv").write_text("4100 5200")
    (tmp_path / "none.csv").touch()
    (tmp_path / "writes.py").write_text("open('/outputs/out', 'w').write('content')")
    (tmp_path / "cat.py").write_text(CAT)
    person.types("dios-node start --data ./node0 --detach")
    try:
        person.types("dios group create hr")
        person.types("dios put pay.csv --group hr --secrecy payroll")
        person.types("dios put none.csv --group hr --secrecy payroll")
        done = subprocess.run(
            [sys.executable, "cat.py"],
            cwd=tmp_path,
            env=person.environment,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert "b'4100 5200' b''" in done.stdout, done.stdout + done.stderr
        assert "/payroll" in done.stdout
        for others in ("pay.csv", "none.csv"):
            person.types(f"dios put {others} --group hr --replace --secrecy uid:4242/board")
            refused = person.types(f"dios get hr/{others}", status=1)
            assert "it is labelled uid:4242/board" in refused.stderr
            assert "damaged" not in refused.stderr
        run = "dios run writes.py -g hr --output out=out.csv --secrecy uid:4242/board"
        assert "it is labelled uid:4242/board" in person.types(run, status=125).stderr
    finally:
        person.types("dios-node stop")


WITHOUT_DIGESTS = """
from msgspec.structs import replace
from dios.cli.common.context import opened

with opened("") as place:
    place.files("hr").edit(lambda tree: [replace(entry, digest=b"") for entry in tree.files.values()])
"""


def test_a_backup_leaves_out_files_with_the_tags_of_others(tmp_path: Path) -> None:
    """Also without a digest in the list: a size that is hidden is no empty file."""
    person = Person(tmp_path)
    (tmp_path / "board.csv").write_text("4100 5200")
    person.types("dios-node start --data ./node0 --detach")
    try:
        person.types("dios group create hr")
        person.types("dios put board.csv --group hr --secrecy uid:4242/board")
        subprocess.run(
            [sys.executable, "-c", WITHOUT_DIGESTS], env=person.environment, timeout=200, check=True
        )
        person.types("dios backup keygen ./backup.key")
        done = person.types("dios backup create ./backups --group hr --recipient backup.key.pub", status=1)
        assert "hr/board.csv" in done.stderr
        assert "it is labelled uid:4242/board" in done.stderr
    finally:
        person.types("dios-node stop")

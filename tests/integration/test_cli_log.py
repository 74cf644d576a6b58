"""``dios log`` on a real node."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.node.command_user import Person

DEADLINE_SECONDS = 30


def test_a_log_from_the_command_line(tmp_path: Path) -> None:
    """Entries are appended from arguments and from lines, read from any place, followed, and removed."""
    person = Person(tmp_path)
    person.types("dios-node start --data ./node --detach")
    try:
        person.types("dios group create notes")
        created = json.loads(person.types("dios journal create diary --group notes --json").stdout)
        assert created["label"] == "diary"
        said = person.types("dios journal append diary --json", "it began", "went on").stdout
        assert json.loads(said) == {"appended": 2, "last": 2}
        person.types("dios journal append diary", typed="a line\nand another\n")
        shown = person.types("dios journal read diary").stdout
        assert shown == "it began\nwent on\na line\nand another\n"
        rows = person.types("dios journal read diary --json").stdout
        lines = [json.loads(line) for line in rows.splitlines()]
        assert [line["text"] for line in lines] == shown.splitlines()
        second = lines[1]["position"]
        assert person.types(f"dios journal read diary --from {second}").stdout.startswith("went on\n")
        follower = person.starts("dios journal follow diary --new --count 1 --json")
        # It may not listen yet: only what comes afterwards is new.
        while follower.poll() is None:
            person.types("dios journal append diary ping")
        out, _ = follower.communicate(timeout=DEADLINE_SECONDS)
        assert json.loads(out)["text"] == "ping"
        assert "not a log" not in person.types("dios rm diary").stderr
        assert "diary" in person.types("dios journal read diary", status=1).stderr
    finally:
        person.types("dios-node stop --data ./node")


def test_only_logs_are_appended_to(tmp_path: Path) -> None:
    """What is no log is refused with what makes one."""
    person = Person(tmp_path)
    person.types("dios-node start --data ./node --detach")
    try:
        person.types("dios group create notes")
        (tmp_path / "file").write_text("text")
        person.types("dios put file --group notes")
        assert "dios journal create" in person.types("dios journal append file x", status=1).stderr
    finally:
        person.types("dios-node stop --data ./node")

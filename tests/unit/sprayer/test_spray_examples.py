"""The scripts in examples/sprayer run without root, and show what they are there to show."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

import dios
from dios.client.keyring import Keyring
from dios.ids import Name
from dios.lib.services import create_service
from dios.sprayer.runtime.loading import load
from dios.wire.nametext import format_name
from tests.support.node.running_node import running_node

pytestmark = pytest.mark.long

EXAMPLES = Path(__file__).parents[3] / "examples" / "sprayer"


@pytest.fixture(autouse=True)
def beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let scripts import modules of their own folder."""
    monkeypatch.syspath_prepend(str(EXAMPLES))


def shown(name: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines that an example prints."""
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    return capsys.readouterr().out.splitlines()


def test_every_script_is_tested() -> None:
    """Each has a test here that calls it by name, but for what they share."""
    text = Path(__file__).read_text()
    for path in EXAMPLES.glob("*.py"):
        assert path.stem == "made_up" or f'shown("{path.stem}"' in text, path


def test_the_counter_counts_what_goes_through(capsys: pytest.CaptureFixture[str]) -> None:
    """Six packets of 54 bytes, of which three open connections, and nothing is lost."""
    assert shown("count", capsys) == ["6 packets, 324 bytes, 3 opened", "all of them went on: True"]


@pytest.mark.extended
def test_the_nat_by_hand_gives_ports_and_leads_answers_back(capsys: pytest.CaptureFixture[str]) -> None:
    """Each connection has a port of its own, each answer its client, and a stranger nobody."""
    *lines, last = shown("nat", capsys)
    clients = ["10.0.0.5:4000", "10.0.0.6:4000", "10.0.0.7:4000"]
    went = [re.fullmatch(r"(\S+) goes on as 192\.0\.2\.1:(\d+)", line) for line in lines[:3]]
    assert [match[1] for match in went if match] == clients
    assert len({match[2] for match in went if match}) == 3
    assert lines[3:] == [f"an answer for {client}" for client in clients]
    assert last == "dropped: 1 of no flow"


def test_the_nat_by_hand_is_about_as_long_as_in_the_thesis() -> None:
    """Its class has no more lines than Figure 3.5, counted without words and empty ones."""
    text = (EXAMPLES / "nat.py").read_text()
    body = text[text.index("class Nat") : text.index("def main")]
    lines = [line for line in body.splitlines() if line.strip() and not line.strip().startswith(("#", '"""'))]
    assert len(lines) <= 40, len(lines)


def test_the_balancer_says_who_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By itself it lists those that would get connections, which it finds by the keyring."""
    with running_node(tmp_path / "node") as started, dios.connect(started.place, groups=()) as node:
        group = node.create_group()
        service = create_service(node, group)
        Keyring.load(tmp_path / "keyring.toml").add("servers", Name(group.name or b""))
        monkeypatch.setenv("DIOS_NODE", started.place)
        monkeypatch.setenv("DIOS_KEYRING", str(tmp_path / "keyring.toml"))
        monkeypatch.setenv("DIOS_SERVICE", format_name(service.name))
        with service.listen("127.0.0.1:0") as acceptor:
            assert shown("balance", capsys) == [acceptor.address]
        assert shown("balance", capsys) == []


@pytest.mark.parametrize("name", ["nat", "count"])
def test_they_are_what_the_command_takes(name: str) -> None:
    """``dios nf run`` finds the function in the file."""
    assert type(load(str(EXAMPLES / f"{name}.py"), {})).__name__ == name.title()

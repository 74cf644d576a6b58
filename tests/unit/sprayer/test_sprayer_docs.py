"""The example of docs/sprayer.md does what the page says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dios.cli import main
from dios.sprayer.pcap import PcapWriter, read_pcap
from tests.support.sprayer.frames import ACK, SYN, Made, read

pytestmark = pytest.mark.long

PAGE = Path(__file__).parents[3] / "docs" / "sprayer.md"


def test_the_example_of_the_page_is_a_function(tmp_path: Path) -> None:
    """Connections to port 443 go both ways, others nowhere, and what was turned away is counted."""
    text = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert text is not None
    (tmp_path / "knock.py").write_text(text[1])
    opened, other = (Made(flags=SYN, target_port=port) for port in (443, 80))
    going = [opened, other, opened.other_way(), Made(target_port=443), Made(target_port=80)]
    with (tmp_path / "in.pcap").open("wb") as file:
        writer = PcapWriter(file)
        for packet in going:
            writer.write(10**18, packet.frame())
    words = [str(tmp_path / name) for name in ("in.pcap", "out.pcap", "knock.py")]
    result = CliRunner().invoke(main.app, ["nf", "replay", *words, "--json"])
    assert result.exit_code == 0, result.stderr
    with (tmp_path / "out.pcap").open("rb") as file:
        packets = [read(frame.data) for frame in read_pcap(file, "out.pcap")]
    assert [(seen.target_port, seen.source_port, seen.flags) for seen in packets] == [
        (443, 1234, SYN),
        (1234, 443, SYN),
        (443, 1234, ACK),
    ]
    told = json.loads(result.stdout)
    assert told["dropped"] == {"refused": 1, "no_flow": 1}
    assert told["counters"] == {"turned_away": 1}

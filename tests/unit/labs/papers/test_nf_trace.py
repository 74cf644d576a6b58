"""``dios lab flows``: the sizes and concurrency of the flows of captures that the tests write."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import dpkt
import pytest
from typer.testing import CliRunner, Result

from dios.cli import main
from tests.support.node.command_user import require_schema
from tests.support.sprayer.frames import UDP, Made

BEGIN = 1_700_000_000


def trace(*words: str | Path) -> Result:
    """The command, in this process."""
    return CliRunner().invoke(main.app, ["lab", "flows", *map(str, words)])


def captured() -> list[tuple[float, bytes]]:
    """Five flows: a large one in all windows, and four small ones, two of them at the same time."""
    large = [(BEGIN + n * 1e-3, Made(payload=bytes(960)).frame()) for n in range(20)]
    small = [
        (BEGIN + at, Made(source_port=port, source=source, target=target).frame())
        for at, port, source, target in (
            (1e-5, 1, "10.0.0.1", "192.0.2.9"),
            (2e-5, 2, "10.0.0.1", "192.0.2.9"),
            (0.5, 3, "2001:db8::1", "2001:db8::2"),
            (0.6, 4, "10.0.0.1", "192.0.2.9"),
        )
    ]
    return sorted([*large, *small, (BEGIN + 0.7, Made(protocol=UDP).frame())])


def write(path: Path, packets: Iterable[tuple[float, bytes]], *, cut: int = 2000, link: int = 1) -> Path:
    """A file of pcap or pcapng, by its name."""
    with path.open("wb") as file:
        if path.suffix == ".pcapng":
            writer = dpkt.pcapng.Writer(file)
        else:
            writer = dpkt.pcap.Writer(file, linktype=link)
        for time_s, data in packets:
            writer.writepkt(data[:cut], time_s)
    return path


@pytest.mark.parametrize("name", ["seen.pcap", "seen.pcapng"])
@pytest.mark.parametrize("cut", [2000, 14 + 40 + 8])
def test_sizes_and_concurrency_are_counted(tmp_path: Path, name: str, cut: int) -> None:
    """Both formats, whole packets and their beginnings give the same numbers, of lengths in headers."""
    result = trace(write(tmp_path / name, captured(), cut=cut), "--large", "0.01", "--json")
    assert result.exit_code == 0, result.stderr
    require_schema("dios lab flows", result.stdout)
    told = json.loads(result.stdout)
    assert (told["packets"], told["others"], told["flows"]) == (24, 1, 5)
    assert told["bytes"] == 20 * 1000 + 3 * 40 + 60
    assert (told["large_flows"], round(told["large_share"], 4)) == (1, round(20_000 / 20_180, 4))
    every, large = told["concurrency"]
    assert (every["windows"], every["median"], every["most"]) == (22, 1, 3)
    assert (large["windows"], large["median"], large["most"]) == (20, 1, 1)
    assert told["sizes"][0]["flows"] == 0.8
    assert told["sizes"][-1] == {"up_to_bytes": 1e5, "flows": 1.0, "bytes": 1.0}


def test_people_see_the_numbers_of_the_thesis_and_pictures(tmp_path: Path) -> None:
    """The table has both, and both figures are drawn; packets of IP alone are read, too."""
    raw = [(time_s, data[14:]) for time_s, data in captured()]
    result = trace(
        write(tmp_path / "seen.pcap", raw, link=101), "--out", tmp_path / "made", "--window", "2000"
    )
    assert result.exit_code == 0, result.stderr
    assert "more than 75 %" in result.stdout
    assert "5 with 20,180 bytes" in result.stdout
    for name in ("flow-sizes.png", "concurrent-flows.png"):
        assert (tmp_path / "made" / name).read_bytes().startswith(b"\x89PNG")


def test_files_that_are_no_captures_are_refused(tmp_path: Path) -> None:
    """Each error names the file and its cause, and none is a traceback."""
    (tmp_path / "text").write_text("no capture at all, but long enough for a header")
    (tmp_path / "cut.pcapng").write_bytes(write(tmp_path / "a.pcapng", captured()).read_bytes()[:300])
    cases = {
        "text": "no capture that can be read",
        "cut.pcapng": "no capture that can be read",
        write(tmp_path / "none.pcap", []).name: "no packets of TCP",
        write(tmp_path / "radio.pcap", [], link=127).name: "link type 127",
        "missing": "missing",
    }
    for name, told in cases.items():
        result = trace(tmp_path / name)
        assert result.exit_code == 1
        assert told in result.stderr
        assert "Traceback" not in result.stderr
    seen = write(tmp_path / "seen.pcap", captured())
    for words in (("--window", "0"), ("--large", "-1")):
        assert trace(seen, *words).exit_code == 1

"""Rows of a node become the text that Prometheus reads; malformed ones are skipped; addresses are checked."""

from __future__ import annotations

import json
import logging
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import trio
import trio.testing
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from dios.cli.main import app
from dios.errors import InvalidError
from dios.node.exporter_places import REPORTED, ExporterPlace, TlsFiles, place_of, require_protected
from dios.node.metrics.exporter import _report_to_node
from dios.node.metrics.family import Kind
from dios.node.metrics.keep_exporter import _last_line
from dios.node.metrics.of_node import of_node
from dios.node.metrics.registry import FAMILIES, read_all
from dios.node.metrics.text import text_of

ROOT = Path(__file__).resolve().parents[4]
METRICS = ROOT / "cluster" / "metrics"
TLS = TlsFiles(Path("/c"), Path("/k"), Path("/a"))
ROWS: list[dict[str, int | str]] = [
    {"metric": "dios_calls_total", "labels": "call=Stat,outcome=ok", "value": 3},
    {"metric": "dios_call_latency_bounds_ns", "labels": "", "value": "1000 2000"},
    {"metric": "dios_call_latency_seconds", "labels": "call=Stat", "value": "4500 1 1 1"},
    {"metric": "dios_call_latency_seconds", "labels": "call=Cut", "value": "4500 1"},
    {"metric": "dios_call_latency_seconds", "labels": "call=Words", "value": "many"},
    {"metric": "dios_of_the_future", "labels": "", "value": 1},
    {"metric": "dios_peer_round_trip_seconds", "labels": 'peer=a"b\n', "value": 250_000},
]


class Node:
    """A node with some metrics and a scheduler that gives a fixed answer."""

    def __init__(self, answer: object) -> None:
        self._answer = answer

    def read_table(self, name: str) -> list[dict[str, int | str]]:
        """Return the rows."""
        assert name == "metrics"
        return ROWS

    def ask_scheduler(self, question: bytes) -> bytes:
        """Return the answer to every question."""
        del question
        return json.dumps(self._answer).encode()


def test_text_is_what_prometheus_reads() -> None:
    """Prometheus' own parser finds every reading, and no malformed or unknown one."""
    readings = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text_of(of_node(ROWS)))
        for sample in family.samples
    }
    assert readings == {
        ("dios_calls_total", (("call", "Stat"), ("outcome", "ok"))): 3,
        ("dios_call_latency_seconds_bucket", (("call", "Stat"), ("le", "1e-06"))): 1,
        ("dios_call_latency_seconds_bucket", (("call", "Stat"), ("le", "2e-06"))): 2,
        ("dios_call_latency_seconds_bucket", (("call", "Stat"), ("le", "+Inf"))): 3,
        ("dios_call_latency_seconds_count", (("call", "Stat"),)): 3,
        ("dios_call_latency_seconds_sum", (("call", "Stat"),)): pytest.approx(4.5e-6),
        ("dios_peer_round_trip_seconds", (("peer", 'a"b\n'),)): pytest.approx(250e-6),
    }


@pytest.mark.parametrize("answer", [None, [], {"ok": False}, {"ok": True, "nodes": 5, "last_round": []}])
def test_malformed_answers_of_a_scheduler_lose_nothing_else(answer: object) -> None:
    """The node's metrics are read even if the scheduler's answer makes no sense."""
    metrics = {reading.metric for reading in read_all(Node(answer))}
    assert {"dios_calls_total", "dios_scheduler_up"} <= metrics


def test_scheduler_and_shares() -> None:
    """The scheduler's status and shares become readings with labels."""
    answer = {
        "ok": True,
        "rounds": 4,
        "running": 2,
        "waiting": 1,
        "last_round": {"solve_s": 0.25},
        "nodes": [{"node": "n1", "cpus_set_aside": 1.5, "cpus": 2}],
        "principals": [{"principal": "uid:1", "share": 0.5, "credit": -0.1}],
        "rates_by": {"algorithm": "dc-drf", "seconds": 0.2, "epsilon": 0.01},
    }
    values = {(reading.metric, *reading.labels.values()): reading.value for reading in read_all(Node(answer))}
    assert values["dios_scheduler_up",] == 1
    assert values["dios_scheduler_round_seconds", "solve"] == 0.25
    assert values["dios_scheduler_reserved_cpus", "n1"] == 1.5
    assert values["dios_share_credit", "uid:1"] == -0.1
    assert values["dios_rates_solve_seconds", "dc-drf"] == 0.2
    assert values["dios_rates_epsilon",] == 0.01


def test_names_follow_the_conventions() -> None:
    """Counters end in ``_total``, others do not; every metric has a sentence of help."""
    for name, family in FAMILIES.items():
        assert re.fullmatch(r"(dios|process)_[a-z_]+", name), name
        assert (family.kind is Kind.COUNTER) == name.endswith("_total"), name
        assert family.help.endswith("."), name


def test_addresses() -> None:
    """Addresses have a port, and only those on loopback may do without TLS."""
    assert place_of("127.0.0.1:9464") == ExporterPlace("127.0.0.1", 9464)
    assert str(place_of("[::1]:9464")) == "[::1]:9464"
    for bad in ("9464", "localhost:9464", "127.0.0.1:0", "127.0.0.1:70000", "127.0.0.1:x", ""):
        with pytest.raises(InvalidError, match="cannot serve metrics"):
            place_of(bad)
    for place in ("127.0.0.1:1", "[::1]:1"):
        require_protected(place_of(place), None)
    for place in ("0.0.0.0:1", "[::]:1", "192.0.2.1:1"):
        with pytest.raises(InvalidError, match="everybody"):
            require_protected(place_of(place), None)
        require_protected(place_of(place), TLS)


def test_users_and_certificates_exclude_each_other() -> None:
    """Users of this machine who may read metrics are named for loopback without TLS only."""
    place = ExporterPlace("127.0.0.1", 9464)
    require_protected(place, None, [7])
    require_protected(place, TLS)
    with pytest.raises(InvalidError, match="metrics_uids"):
        require_protected(place, TLS, [7])


@pytest.mark.parametrize(
    ("option", "named"), [("--uid 7", "--uid"), ("--certificate c --key k --clients a", "TLS")]
)
def test_an_option_of_a_server_needs_one(option: str, named: str) -> None:
    """`dios metrics` refuses an option of its server without --listen."""
    result = CliRunner().invoke(app, ["metrics", *option.split()])
    assert result.exit_code == 1
    assert f"cannot use {named}: nothing is served" in result.stderr


def test_warnings_of_an_exporter_are_reports_to_its_node(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A warning in the exporter's process is a line with the user that it is about."""
    monkeypatch.setattr(logging.getLogger("dios"), "handlers", [])
    _report_to_node()
    logging.getLogger("dios.transport").warning("a connection was refused", extra={"uid": 7})
    assert capsys.readouterr().err == f"{REPORTED}a connection was refused uid=7 why=-\n"


async def test_the_node_logs_reports_of_its_exporter(caplog: pytest.LogCaptureFixture) -> None:
    """Reported lines are logged, however they arrive; of the others the last is the reason of an end."""
    sender, receiver = trio.testing.memory_stream_one_way_pair()
    lines = b"Traceback\nreported: a connection was refused uid=7\nValueError: no\nreported: again\n"
    for place in range(0, len(lines), 5):
        await sender.send_all(lines[place : place + 5])
    await sender.aclose()
    assert await _last_line(receiver) == "ValueError: no"
    reports = [record.__dict__["why"] for record in caplog.records]
    assert reports == ["a connection was refused uid=7", "again"]


def test_page_lists_every_metric() -> None:
    """``docs/observe.md`` lists exactly the metrics that exist."""
    text = (ROOT / "docs" / "observe.md").read_text()
    listed = set(re.findall(r"^\| `((?:dios|process)_\w+)`", text, re.MULTILINE))
    assert listed == set(FAMILIES)


def test_rules_and_dashboard_use_existing_metrics() -> None:
    """No rule and no panel asks for a metric that does not exist."""
    text = (METRICS / "alerts.yml").read_text() + (METRICS / "grafana" / "dashboard.json").read_text()
    used = set(re.findall(r"\b(?:dios|process)_[a-z_]+[a-z]\b", text)) - {"dios_metrics"}
    known = set(FAMILIES) | {
        f"{name}_bucket" for name, family in FAMILIES.items() if family.kind is Kind.HISTOGRAM
    }
    assert used <= known


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is missing: apt install prometheus")
def test_rules_pass_their_own_tests() -> None:
    """The alert rules are accepted by promtool, and their tests pass."""
    for command in (("check", "rules", "alerts.yml"), ("test", "rules", "alerts.test.yml")):
        done = subprocess.run(
            ("promtool", *command), cwd=METRICS, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

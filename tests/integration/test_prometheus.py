"""Prometheus, with the files of ``cluster/metrics``, reads two nodes and evaluates every expression."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import socket
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Final, cast

import pytest

import dios
from dios.client.sync.node import connect
from dios.node import local_cluster
from dios.node.local_cluster import LocalCluster
from tests.support.node.running_node import wait_until
from tests.support.node.scheduled_cluster import LOADED_S

METRICS: Final = Path(__file__).parents[2] / "cluster" / "metrics"
WAIT_S: Final = 300
SCHEDULED: Final = {"dios_scheduler_round_seconds", "dios_share", "dios_share_entitlement"}
"""Metrics of a scheduler whose kernels are compiled, which takes minutes at the first time."""
LATER: Final = SCHEDULED | {"dios_nf_dropped_packets_total"}
"""The same, and those of a running network function."""
NAMES: Final = re.compile(r"\b(?:dios|process)_[a-z_]+[a-z]\b")

pytestmark = [
    pytest.mark.extended,
    pytest.mark.timeout(2 * LOADED_S),
    pytest.mark.skipif(
        shutil.which("prometheus") is None, reason="prometheus is missing: apt install prometheus"
    ),
]


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody has."""
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def replaced(text: str, *pairs: tuple[str, str]) -> str:
    """The text with each first part, which it must have, replaced by the second one."""
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new)
    return text


class Prometheus:
    """A running Prometheus with the configuration of the compose file, at other addresses."""

    def __init__(self, folder: Path, port: int) -> None:
        self._port = port
        command = ["prometheus", f"--config.file={folder}/prometheus.yml"]
        command += [f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}"]
        self.log = folder / "prometheus.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def ask(self, path: str, **fields: str) -> dict[str, object]:
        """The data of an answer; nothing while it starts."""
        line = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            line.request("GET", f"/api/v1/{path}?" + urllib.parse.urlencode(fields))
            answer = json.loads(line.getresponse().read())
        except (ConnectionError, ValueError):
            assert self.process.poll() is None, self.log.read_text()
            return {}
        finally:
            line.close()
        assert answer["status"] == "success", answer
        return cast("dict[str, object]", answer["data"])

    def has(self, expression: str) -> bool:
        """True if an expression has a value."""
        return bool(self.ask("query", query=expression).get("result"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two nodes that serve metrics over mutual TLS, with the certificates of the compose file."""
    folder = tmp_path_factory.mktemp("prometheus")
    subprocess.run([sys.executable, METRICS / "certificates.py", folder / "tls", "localhost"], check=True)
    files = ",".join(str(folder / "tls" / name) for name in ("server.pem", "server.key", "authority.pem"))
    settings = {"accept_weaker_sandbox": "yes", "pool_size": "0", "coordinator": "on", "metrics_tls": files}
    live_cluster = local_cluster.make(folder / "cluster", nodes=2, settings=settings)
    for node, port in zip(live_cluster.nodes, free_ports(2), strict=True):
        with (node.data / "node.toml").open("a") as file:
            file.write(f'metrics = "127.0.0.1:{port}"\n')
    try:
        with pytest.MonkeyPatch.context() as patch:
            # Other tests have no coordinator.
            patch.delenv("DIOS_COORDINATOR", raising=False)
            local_cluster.start(live_cluster)
        yield live_cluster
    finally:
        local_cluster.stop(live_cluster)


@pytest.fixture(scope="module")
def prometheus(cluster: LocalCluster) -> Iterator[Prometheus]:
    """A Prometheus that reads both nodes each second."""
    folder = cluster.directory.parent
    ports = [
        re.findall(r'metrics = "127.0.0.1:(\d+)"', (node.data / "node.toml").read_text())[0]
        for node in cluster.nodes
    ]
    text = replaced(
        (METRICS / "prometheus.yml").read_text(),
        ("scrape_interval: 15s", "scrape_interval: 1s\n  evaluation_interval: 1s"),
        ("/etc/dios-metrics", str(folder / "tls")),
        ("[n1:9464, n2:9464, n3:9464]", str([f"localhost:{port}" for port in ports])),
    )
    (folder / "prometheus.yml").write_text(text)
    shutil.copy(METRICS / "alerts.yml", folder)
    server = Prometheus(folder, free_ports(1)[0])
    try:
        yield server
    finally:
        server.process.terminate()
        server.process.wait(60)


def rules_of(prometheus: Prometheus) -> list[dict[str, str]]:
    """The alert rules, as Prometheus has evaluated them."""
    groups = cast("list[dict[str, list[dict[str, str]]]]", prometheus.ask("rules").get("groups", []))
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[str]:
    """The expressions of Grafana's dashboard."""
    expressions: list[str] = []

    def look(value: object) -> None:
        for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            look(inner)
        if isinstance(value, dict) and isinstance(value.get("expr"), str):
            expressions.append(value["expr"])

    look(json.loads((METRICS / "grafana" / "dashboard.json").read_text()))
    return expressions


def test_every_rule_and_panel_has_its_metrics_at_real_nodes(
    cluster: LocalCluster, prometheus: Prometheus
) -> None:
    """Both nodes are read over TLS; all metrics of rules and panels exist, and expressions have values."""
    wait_until(lambda: prometheus.has('count(up{job="dios"} == 1) == 2'), "both nodes are read", WAIT_S)
    with connect(str(cluster.nodes[0].socket), groups=()) as node:
        wait_until(lambda: all(member.coordinated for member in node.nodes()), "a coordinator", WAIT_S)
        assert node.run(b"").wait().ok
    wait_until(lambda: {rule["health"] for rule in rules_of(prometheus)} == {"ok"}, "the rules", WAIT_S)
    assert len(rules_of(prometheus)) == (METRICS / "alerts.yml").read_text().count("- alert:")
    assert not [rule["lastError"] for rule in rules_of(prometheus) if rule.get("lastError")]
    expressions = panels()
    assert len(expressions) > 15
    texts = [*expressions, (METRICS / "alerts.yml").read_text()]
    used = {name for text in texts for name in NAMES.findall(text)}
    for name in sorted(used - LATER):
        wait_until(lambda name=name: prometheus.has(name), f"the metric {name}", WAIT_S)
    for text in expressions:
        if not LATER & set(NAMES.findall(text)):
            wait_until(lambda text=text: prometheus.has(text), f"a value of {text}", WAIT_S)
        assert "result" in prometheus.ask("query", query=text)


def test_the_scheduler_has_rounds_and_shares(cluster: LocalCluster, prometheus: Prometheus) -> None:
    """The panels of rounds and shares have values when the kernels are compiled and a run was placed."""
    wanted = [text for text in panels() if SCHEDULED & set(NAMES.findall(text))]
    assert len(wanted) == len(SCHEDULED)

    def is_scheduled() -> bool:
        # Until then runs are placed by a simple rule, without a round.
        with connect(str(cluster.nodes[0].socket), groups=()) as node:
            assert node.run(b"", work=dios.work(cpus=0.1)).wait().ok
        return all(map(prometheus.has, wanted))

    wait_until(is_scheduled, "a round of the scheduler", LOADED_S)


def test_the_death_of_a_node_is_an_alert(cluster: LocalCluster, prometheus: Prometheus) -> None:
    """When a node is gone, Prometheus notices, and its alert waits for its minute."""
    wait_until(lambda: prometheus.has('count(up{job="dios"} == 1) == 2'), "both nodes are read", WAIT_S)
    with connect(str(cluster.nodes[1].socket), groups=()) as node:
        node.shutdown()

    def pending() -> list[str]:
        return [rule["name"] for rule in rules_of(prometheus) if rule["state"] != "inactive"]

    wait_until(lambda: "DiosNodeDown" in pending(), "the alert", WAIT_S)

"""Traces of real programs on two nodes: in a file without a collector, and at a collector by OTLP."""

from __future__ import annotations

import gzip
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from dios.client.sync.node import connect
from dios.node import local_cluster
from dios.node.local_cluster import LocalCluster
from dios.wire.codec import encode_request
from dios.wire.messages import ListNodes, Nodes
from tests.support.node.raw_client import NodeProcess, RawClient
from tests.support.node.running_node import wait_until

DEADLINE_S = 120
TRACE = "0af7651916cd43dd8448eb211c80319c"

READ_FAR = """
import sys
import dios
from dios.wire.types import NameKind, ObjectType

near, far = (dios.connect(place, groups=()) for place in sys.argv[1:])
group = far.create_group()
blob = far.create(ObjectType.DURABLE_BLOB, data=b"bytes", groups=[group], naming=NameKind.RANDOM)
with dios.connect(sys.argv[1], groups=[group.name]) as reader:
    (found,) = reader.lookup(blob.name)
    assert found.read_bytes() == b"bytes"
"""

SPREAD = """
import sys
import dios
from dios.client.tracing import active
from dios.lib import mapreduce
from dios.wire.types import NameKind, ObjectType

FAR = b'''
import dios
from dios.client.tracing import active
from dios.wire.types import ObjectType

node = dios.connect()
assert not node.outputs
assert node.inputs[0].read_bytes() == b"bytes"
with active.span("own work"):
    node.create(ObjectType.DURABLE_BLOB, data=b"made")
'''

def in_worker():
    import dios
    from dios.wire.types import ObjectType
    dios.connect().create(ObjectType.SHMEM_BLOB, data=b"made")

with active.span("whole"), dios.connect(sys.argv[1], groups=()) as node:
    other = next(one.name for one in node.nodes() if not one.here)
    blob = node.create(ObjectType.SHMEM_BLOB, data=b"bytes", naming=NameKind.ANONYMOUS)
    task = node.run(FAR, host=other, label="far", inputs=[blob.restrict("read", label="in")])
    status = task.wait()
    assert status.ok and status.node == other, status
    with dios.Executor(1, node=node, host=other) as executor:
        executor.submit(in_worker).result()
    job = b"def map_keys(line):\\n    return line.split()\\nreduce = sum\\n"
    mapreduce.run(node, job, [b"a b a", b"c"], reducers=1, splits=2)
"""

WORK = """
import sys
import dios
from dios.client.tracing import active
from dios.lib import mapreduce

with active.span("whole"), dios.connect(sys.argv[1], groups=()) as node:
    with dios.Executor(1, node=sys.argv[1]) as executor:
        assert executor.submit(pow, 2, 3).result() == 8
    job = b"def map_keys(line):\\n    return line.split()\\nreduce = sum\\n"
    mapreduce.run(node, job, [b"a b a"], reducers=1)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two nodes."""
    settings = {"accept_weaker_sandbox": "yes", "pool_size": "1", "coordinator": "off"}
    live_cluster = local_cluster.make(
        tmp_path_factory.mktemp("traces") / "cluster", nodes=2, settings=settings
    )
    try:
        local_cluster.start(live_cluster)
        with connect(str(live_cluster.nodes[0].socket), groups=()) as node:
            wait_until(lambda: all(member.usable for member in node.nodes()), "both nodes")
        yield live_cluster
    finally:
        local_cluster.stop(live_cluster)


def environment(home: Path, **more: str) -> dict[str, str]:
    """The environment of a program of somebody whose home is this."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("DIOS_", "OTEL_", "XDG_"))}
    return {**kept, "HOME": str(home), "XDG_RUNTIME_DIR": str(home), **more}


def record(home: Path, *command: str) -> tuple[subprocess.CompletedProcess[str], list[dict[str, object]]]:
    """Record a command. Return how it ended, and the complete events of its file."""
    out = home / "trace.json"
    words = [sys.executable, "-m", "dios.cli.main", "trace", "record", "-o", str(out), "--", *command]
    ended = subprocess.run(
        words,
        env=environment(home, TRACEPARENT=f"00-{TRACE}-b7ad6b7169203331-01"),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    whole = json.loads(out.read_text())
    assert set(whole) == {"traceEvents", "displayTimeUnit"}
    return ended, [event for event in whole["traceEvents"] if event["ph"] == "X"]


def above(events: list[dict[str, object]], event: dict[str, object]) -> list[str]:
    """The names of an event and of all above it."""
    by_span = {args["span"]: candidate for candidate in events if isinstance(args := candidate["args"], dict)}
    names: list[str] = []
    while event:
        names.append(str(event["name"]))
        args = event["args"]
        assert isinstance(args, dict)
        event = by_span.get(args["parent"], {})
    return names


def test_a_call_is_followed_to_the_other_node_and_its_store(cluster: LocalCluster, tmp_path: Path) -> None:
    """The file has the client's calls, those of its node, of the other node, and the store's commits."""
    program = tmp_path / "read_far.py"
    program.write_text(READ_FAR)
    places = [str(node.socket) for node in cluster.nodes]
    ended, events = record(tmp_path, sys.executable, str(program), *places)
    assert ended.returncode == 0, ended.stderr
    chains = {" < ".join(above(events, event)) for event in events}
    root = sys.executable
    assert f"store: commit < Create < Create < {root}" in chains
    assert any(chain.endswith(f"Resolve < ask: Resolve < Lookup < Lookup < {root}") for chain in chains)
    assert any(chain.startswith("ReadOnce < ask: ReadOnce < ReadOnce < ReadOnce < ") for chain in chains)
    for event in events:
        assert isinstance(event["ts"], float)
        assert event["ts"] >= 0
        assert isinstance(event["dur"], float)
        assert event["dur"] >= 0
        args = event["args"]
        assert isinstance(args, dict)
        assert args["trace"] == TRACE


def test_a_task_finds_the_span_that_it_is_a_part_of(cluster: LocalCluster, tmp_path: Path) -> None:
    """`dios run` hands the TRACEPARENT of its environment on, and the exit status is that of the command."""
    program = tmp_path / "show.py"
    program.write_text("import os, sys\nprint(os.environ['TRACEPARENT'])\nsys.exit(7)\n")
    node = str(cluster.nodes[0].socket)
    run = [sys.executable, "-m", "dios.cli.main", "run", str(program), "--node", node]
    ended, events = record(tmp_path, *run)
    assert ended.returncode == 7, ended.stderr
    root = events[0]["args"]
    assert isinstance(root, dict)
    assert root["failed"] is True
    (own,) = (event["args"] for event in events if event["name"] == "task: show.py")
    assert isinstance(own, dict)
    assert own["failed"] is True
    assert ended.stdout.strip() == f"00-{TRACE}-{own['span']}-01"


def test_the_calls_of_tasks_on_two_nodes_are_in_the_trace_of_what_started_them(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """A run, an executor's call and a job's stages have the spans of their tasks, wherever these run."""
    program = tmp_path / "spread.py"
    program.write_text(SPREAD)
    ended, events = record(tmp_path, sys.executable, str(program), str(cluster.nodes[0].socket))
    assert ended.returncode == 0, ended.stderr
    chains = {" < ".join(above(events, event)) for event in events}
    root = f" < whole < {sys.executable}"
    assert f"Create < own work < task: far{root}" in chains
    assert f"store: commit < Create < Create < own work < task: far{root}" in chains
    assert f"ReadOnce < ask: ReadOnce < ReadOnce < ReadOnce < task: far{root}" in chains
    assert f"Create < call < executor: in_worker{root}" in chains
    for stage in ("mapper 0", "mapper 1", "reducer 0"):
        part = f" < task: job {stage} < {stage} < job job{root}"
        assert any(chain.endswith(part) and chain.count(" < ") > part.count(" < ") for chain in chains), stage
    args = [event["args"] for event in events]
    assert {fields["trace"] for fields in args if isinstance(fields, dict)} == {TRACE}


class Collector(http.server.BaseHTTPRequestHandler):
    """A receiver of OTLP over HTTP."""

    received: list[ExportTraceServiceRequest]

    def do_POST(self) -> None:
        """Keep what was sent."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        assert self.path == "/v1/traces"
        self.received.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named by its base class
        """Say nothing."""


def test_a_collector_gets_the_spans_of_calls_executors_and_jobs(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """Over OTLP come the program's own spans, those of an executor's call and a job, and the node's."""
    program = tmp_path / "work.py"
    program.write_text(WORK)
    Collector.received = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            address = f"http://127.0.0.1:{server.server_port}"
            env = environment(tmp_path, DIOS_TRACE="otlp", OTEL_EXPORTER_OTLP_ENDPOINT=address)
            command = [sys.executable, str(program), str(cluster.nodes[0].socket)]
            subprocess.run(command, env=env, timeout=DEADLINE_S, check=True)
        finally:
            server.shutdown()
            serving.join()
    spans = {}
    for request in Collector.received:
        for group in request.resource_spans:
            service = {
                attribute.key: attribute.value.string_value for attribute in group.resource.attributes
            }["service.name"]
            for scope in group.scope_spans:
                spans.update({span.span_id: (service, span) for span in scope.spans})
    named = {span.name: span for _, span in spans.values()}
    whole = named["whole"]
    for name, parent in (
        ("executor: pow", "whole"),
        ("waits for a worker", "executor: pow"),
        ("in a worker", "executor: pow"),
        ("job job", "whole"),
        ("mapper 0", "job job"),
        ("reducer 0", "job job"),
    ):
        assert spans[named[name].parent_span_id][1].name == parent
        assert named[name].trace_id == whole.trace_id
    assert any(service == "dios-node" and span.name == "Run" for service, span in spans.values())
    assert all(span.start_time_unix_nano <= span.end_time_unix_nano for _, span in spans.values())


def test_a_node_may_refuse_to_answer_with_times(tmp_path: Path) -> None:
    """With `traces = false` the Welcome does not offer them, and a traced call is an ordinary one."""
    node = NodeProcess(tmp_path / "node", traces="no", accept_weaker_sandbox="yes", pool_size="0")
    try:
        with RawClient(node.socket) as client:
            assert not client.welcome.traces
            client.channel.send(encode_request(77, ListNodes(), bytes(25)))
            seq, result, _ = client.receive()
            assert (seq, type(result)) == (77, Nodes)
    finally:
        node.kill()

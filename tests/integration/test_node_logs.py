"""The logs of the nodes of a cluster, as `dios node logs` shows them, and an attacker who writes into one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dios import limits
from dios.cli import main
from dios.client.sync.node import connect
from dios.errors import DiosError
from dios.node import local_cluster
from dios.node.local_cluster import LocalCluster
from dios.wire.codec import PROTOCOL_VERSION, encode_request
from dios.wire.messages import Create, Hello, Lookup
from dios.wire.nametext import format_name
from dios.wire.types import ObjectType
from tests.support.node.raw_client import RawClient
from tests.support.node.running_node import wait_until

HOSTILE = "\x1b[31m\nforged \u202e"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two nodes that log everything."""
    settings = {"accept_weaker_sandbox": "yes", "pool_size": "0", "log_level": "debug", "log_format": "json"}
    live_cluster = local_cluster.make(tmp_path_factory.mktemp("logs") / "cluster", nodes=2, settings=settings)
    try:
        local_cluster.start(live_cluster)
        with connect(str(live_cluster.nodes[0].socket), groups=()) as node:
            wait_until(lambda: all(member.usable for member in node.nodes()), "both nodes")
        yield live_cluster
    finally:
        local_cluster.stop(live_cluster)


def shown(cluster: LocalCluster, *options: str) -> list[dict[str, object]]:
    """The rows that the command prints."""
    command = ["node", "logs", "--json", "--node", str(cluster.nodes[0].socket), *options]
    outcome = CliRunner().invoke(main.app, command)
    assert outcome.exit_code == 0, outcome.output
    return [json.loads(line) for line in outcome.stdout.splitlines()]


def test_the_logs_of_all_nodes_are_merged_by_time(cluster: LocalCluster) -> None:
    """Every node's records are there once; a level, a name and a number choose among them."""
    rows = shown(cluster)
    assert {row["node"] for row in rows} == {"n1", "n2"}
    times = [int(str(row["time"])) for row in rows]
    assert times == sorted(times)
    assert any(row["message"] == "the node serves" for row in rows)
    assert {row["node"] for row in shown(cluster, "n2")} == {"n2"}
    assert {row["level"] for row in shown(cluster, "--level", "warning")} <= {"warning", "error"}
    assert len(shown(cluster, "--lines", "3")) == 3
    about_n1 = [
        row["fields"] for row in rows if row["node"] == "n2" and row["message"] == "a node is connected"
    ]
    assert [fields["peer"] for fields in about_n1 if isinstance(fields, dict)].count("n1") >= 1


def test_new_records_are_followed(cluster: LocalCluster) -> None:
    """A record of the other node that comes later is shown once, also if it is about hostile text."""
    command = [sys.executable, "-m", "dios.cli.main", "node", "logs", "--follow"]
    command += ["--node", str(cluster.nodes[0].socket)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline()  # it has read both logs
            with RawClient(cluster.nodes[1].socket) as client:
                seen = client.welcome.self_ref.fingerprint
            for line in iter(process.stdout.readline, ""):
                assert line[:-1].isprintable()
                if seen in line:
                    break
            else:
                pytest.fail("the record was not shown")
        finally:
            process.terminate()
            process.wait(30)


def test_the_records_of_a_trace_are_chosen_on_all_nodes(cluster: LocalCluster) -> None:
    """A traced call that goes to the other node is in both logs with the ids of its trace and span."""
    trace, span = os.urandom(16), os.urandom(8)
    with RawClient(cluster.nodes[0].socket) as client:
        call = Create(ObjectType.SHMEM_BLOB, host="n2")
        client.channel.send(encode_request(77, call, trace + span + b"\1"))
        assert client.receive()[0] == 77
    for text in (trace.hex().upper(), f"00-{trace.hex()}-{span.hex()}-01"):
        rows = shown(cluster, "--trace", text)
        assert {row["node"] for row in rows} == {"n1", "n2"}
        fields = [row["fields"] for row in rows]
        assert {entry["span_id"] for entry in fields if isinstance(entry, dict)} == {span.hex()}
        assert {entry["call"] for entry in fields if isinstance(entry, dict) and "call" in entry} == {
            "Create"
        }
    log = [json.loads(line) for line in Path(cluster.nodes[1].data, "node.log").read_text().splitlines()]
    assert any(line.get("trace_id") == trace.hex() for line in log)
    assert not shown(cluster, "--trace", os.urandom(16).hex())
    command = ["node", "logs", "--node", str(cluster.nodes[0].socket), "--trace", "none"]
    assert "32 hexadecimal digits" in CliRunner().invoke(main.app, command).output


def test_an_attacker_gets_no_secret_into_the_log(cluster: LocalCluster) -> None:
    """Names in calls, labels and malformed frames of every kind are in no line of the log, in any form."""
    place = cluster.nodes[0]
    names = [os.urandom(32) for _ in range(4)]
    grant, token = "diosgrant1" + "a2b3c4d5" * 20, "dios-join-1." + "aB3xYz_-" * 20
    texts = [format_name(names[1]), grant, token]
    with RawClient(place.socket, groups=(names[0],)) as client:
        seen = client.welcome.self_ref.fingerprint
        client.any(Lookup(names[1]))
        for text in texts:
            client.any(Create(ObjectType.TCP_STREAM, address=text + HOSTILE))
            client.any(Create(ObjectType.SHMEM_BLOB, host=text))
    for body in (
        b"\x92\x01" + repr(names[2]).encode(),
        encode_request(1, Lookup(names[2]))[4:] + names[3],
        *(encode_request(1, Hello(9, (), text))[4:] for text in texts),
        *(encode_request(1, Hello(PROTOCOL_VERSION, (), text + HOSTILE))[4:-1] for text in texts),
        b"\xc4\x20" + names[3],
    ):
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(place.socket))
            line.sendall(len(body).to_bytes(4, "little") + body)
            line.settimeout(30)
            while line.recv(limits.FRAME_BYTES_MAX):
                pass
    wait_until(lambda: any(seen in json.dumps(row) for row in shown(cluster)), "the session in the log")
    log = Path(place.data, "node.log").read_text()
    everything = log + "\n".join(json.dumps(row) for row in shown(cluster))
    assert seen in log
    assert all(line.isprintable() for line in log.splitlines())
    for name in names:
        for form in (
            name.hex(),
            format_name(name),
            repr(name)[2:-1],
            json.dumps(name.decode("latin1"))[1:-1],
        ):
            assert form[8:40] not in everything
    for text in (grant, token):
        assert text[12:40] not in everything


TALKATIVE = b"""
import sys
import dios

node = dios.connect()
(group,) = node.groups
made = node.create(dios.DURABLE_BLOB, groups=[group], data=sys.argv[1].encode())
print(sys.argv[1])
raise ValueError(sys.argv[1] + made.name.hex())
"""


def test_a_workload_leaves_none_of_its_secrets_in_any_log(cluster: LocalCluster) -> None:
    """Names, the nonce of a share and the words of a program are in no log of either node, at any level."""
    here, there = (str(node.socket) for node in cluster.nodes)
    word = "secret-" + os.urandom(12).hex()
    until = time.time_ns() + 3_600 * 10**9
    with connect(here, groups=()) as node:
        group = node.create_group()
        blobs = [node.create(ObjectType.DURABLE_BLOB, groups=[group], data=word.encode()) for _ in range(2)]
        far = node.create(ObjectType.SHMEM_BLOB, groups=[group], host="n2")
        nonce = os.urandom(32)
        share = node.share_group(group, f"uid:{os.getuid()}", nonce=nonce, expires_ns=until)
        tasks = [
            node.run(TALKATIVE, groups=[group], args=[word], label="talkative", host=host)
            for host in ("n1", "n2")
        ]
        assert all("ValueError" in task.wait().detail for task in tasks)
        assert group.name is not None
        with connect(there, groups=[group.name]) as other:
            contents = [replica.read_bytes() for blob in blobs for replica in other.lookup(blob.name or b"")]
            assert contents == [word.encode()] * 2
        share.destroy()
        with pytest.raises(DiosError):
            node.accept_share(group.name, nonce=nonce, issuer=f"uid:{os.getuid()}", expires_ns=until)
        blobs[0].retire(everyone=True)
        handles = [group, *blobs, far, share, *tasks, node.self]
        names = [nonce, node.name, *(handle.name for handle in handles if handle.name is not None)]
        ended = tasks[1].fingerprint
    wait_until(lambda: any(ended in json.dumps(row) for row in shown(cluster)), "the task in the log")
    places = [node.data for node in cluster.nodes]
    everything = "".join(Path(place, "node.log").read_text() for place in places)
    everything += "\n".join(json.dumps(row) for row in shown(cluster))
    assert len(names) >= 8
    for name in names:
        for form in (
            name.hex(),
            format_name(name),
            repr(name)[2:-1],
            json.dumps(name.decode("latin1"))[1:-1],
        ):
            assert form[8:40] not in everything
    assert word[8:30] not in everything

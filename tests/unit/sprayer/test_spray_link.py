"""Redundancy elimination over a link between two middleboxes, with real TCP from end to end.

Skipped where this machine makes no namespaces, with its reason.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.lab.function_machines import END_SECONDS, PYTHON, RIGHT, FunctionLab, Told
from tests.support.lab.namespaces import NotHereError, killed_with_parent, run

pytestmark = pytest.mark.long

PAGE_BYTES = 1_500_000
PORT = "8000"
PLAY = Path(__file__).parents[2] / "support" / "programs" / "nf_play.py"
# Send one segment at a time and fill the first, because payloads match only as a whole.
SERVER = """
import socket, sys
page = open(sys.argv[1], "rb").read()
head = b"HTTP/1.0 200 OK\\r\\nContent-Length: %d\\r\\nX-Rest: " % len(page)
with socket.create_server(("", int(sys.argv[2]))) as server:
    print("Serving", flush=True)
    while True:
        client, _ = server.accept()
        with client:
            size = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
            client.recv(65536)
            answer = head.ljust(size - 4, b"x") + b"\\r\\n\\r\\n" + page
            for at in range(0, len(answer), size):
                client.sendall(answer[at : at + size])
            client.shutdown(socket.SHUT_WR)
            client.recv(1)
"""
FUNCTION = "dios.sprayer.functions.redundancy:Redundancy('both', 'secret', 4096)"


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[FunctionLab]:
    """Left and right, and in the middle a link with an end for each."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed (on Debian or Ubuntu: apt install curl)")
    try:
        bench = FunctionLab(tmp_path)
    except NotHereError as error:
        pytest.skip(str(error))
    with contextlib.closing(bench):
        bench.middle.batch(
            ["link add near0 type veth peer name far0", "link set near0 up", "link set far0 up"]
        )
        # A window that is full cuts segments where it ends, and so at other places each time.
        change = f"echo '4096 {8 * PAGE_BYTES} {8 * PAGE_BYTES}' > /proc/sys/net/ipv4/tcp_rmem"
        run(bench.left.inside("sh", "-c", change))
        yield bench


@contextlib.contextmanager
def end(lab: FunctionLab, inside: str, link: str, steer: str) -> Iterator[Told]:
    """One middlebox at work; the list has what each core did when it ended."""
    told: Told = []
    log = lab.folder / f"{link}.log"
    command = [*PYTHON, str(PLAY), "--pair", inside, link, "--function", FUNCTION, "--steer", steer]
    command += ["--records", str(lab.folder / link)]
    with (
        log.open("w") as errors,
        subprocess.Popen(
            killed_with_parent(lab.middle.inside(*command)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n", log.read_text()[-2000:]
            yield told
            output, _ = process.communicate("", timeout=END_SECONDS)
            assert process.returncode == 0, log.read_text()[-2000:]
            told.extend(json.loads(output))
        finally:
            process.kill()


def carried(lab: FunctionLab) -> int:
    """Bytes that went over the link until now, in both directions."""
    words = lab.middle.inside("ip", "-json", "-statistics", "link", "show", "dev", "near0")
    (link,) = json.loads(run(words))
    return int(link["stats64"]["rx"]["bytes"]) + int(link["stats64"]["tx"]["bytes"])


@pytest.mark.parametrize(("steer", "at_most"), [("rss", 0.5), ("spray", 0.9)])
def test_a_page_that_came_before_takes_little_of_the_link(
    lab: FunctionLab, steer: str, at_most: float
) -> None:
    """Fetched three times by curl it is the same each time, and later it takes less of the link.

    Spraying lets segments overtake each other: TCP takes some for lost, and what it sends again goes whole.
    """
    page, got = lab.folder / "page", lab.folder / "got"
    page.write_bytes(random.Random(8).randbytes(PAGE_BYTES))  # noqa: S311 - test data
    server = [sys.executable, "-c", SERVER, str(page), PORT]
    taken = []
    with (
        end(lab, "in0", "near0", steer) as near,
        end(lab, "out0", "far0", steer) as far,
        lab.serving(lab.right, server, "Serving"),
    ):
        for _ in range(3):
            before = carried(lab)
            words = ["curl", "-sS", "--max-time", "30", "-o", str(got), f"http://{RIGHT}:{PORT}/page"]
            run(lab.left.inside(*words))
            taken.append(carried(lab) - before)
            same = [hashlib.sha256(path.read_bytes()).digest() for path in (page, got)]
            assert same[0] == same[1]
            got.unlink()
    assert taken[0] > PAGE_BYTES
    assert min(taken[1:]) < at_most * taken[0], (taken, near, far)

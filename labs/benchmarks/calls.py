"""The control plane: system calls, small reads, creates and vectors, compared with an echo, Redis and Ray.

Bulk data is in ``labs.benchmarks.blobs``, durability in ``labs.benchmarks.durable``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import cast

import dios
from dios.limits import VECTOR_CALLS_MAX
from dios.wire import messages
from dios.wire.messages import PlainCall
from labs.benchmarks.measure import CLIENT_CPU, SERVER_CPU, interleaved, median, once, pin, unpin
from labs.benchmarks.nodes import running_node, workspace
from labs.benchmarks.peers.echo import echo_server, message_call, raw_call
from labs.benchmarks.peers.ray_session import Actor, ray_session
from labs.benchmarks.peers.redis_server import Client, MissingPeerError, pipelined, redis_client
from labs.benchmarks.report import Goal, Row, Section, judge, number, times

SIZE = 100
NAN = float("nan")
_CREATE_KINDS = ("anonymous", "random", "deterministic")


def run(section: Section) -> None:
    """Measure, and compare with the goals."""
    ours = _against_small_servers(section)
    ray = _ray(section)
    _vectors(section)
    _rows(section, ours, ray)


# -- one call at a time -------------------------------------------------------------------------------
def _against_small_servers(section: Section) -> dict[str, float]:
    """Measure our calls, the echo's and Redis' in turns: client on one processor, servers on the other."""
    payload = os.urandom(SIZE)
    with contextlib.ExitStack() as stack:
        bench = stack.enter_context(running_node(SERVER_CPU))
        raw = stack.enter_context(echo_server(SERVER_CPU, raw=True))
        framed = stack.enter_context(echo_server(SERVER_CPU, raw=False))
        pin(CLIENT_CPU)
        node = stack.enter_context(dios.connect(bench.data, groups=[]))
        group = node.create_group()
        blob = node.create(dios.SHMEM_BLOB, groups=[group], data=payload)
        references: list[dios.Reference] = []

        def create(kind: dios.NameKind) -> Callable[[], object]:
            groups = [] if kind is dios.ANONYMOUS else [group]
            return lambda: references.append(
                node.create(dios.SHMEM_BLOB, groups=groups, data=payload, naming=kind)
            )

        def close_made(_: str) -> None:
            node.vector([messages.Delete(reference.ref) for reference in references])
            references.clear()

        contenders: dict[str, Callable[[], object]] = {
            "echo, bytes": raw_call(raw, SIZE),
            "echo, messages": message_call(framed, SIZE),
            "stat": blob.stat,
            # A read with EXCL always asks the node; one with ANY repeats what this process has.
            "read by a call": lambda: blob.read_bytes(semantics=dios.EXCL),
            "repeated read": blob.read_bytes,
            "create anonymous": create(dios.ANONYMOUS),
            "create random": create(dios.RANDOM),
            "create deterministic": create(dios.DETERMINISTIC),
        }
        try:
            redis = stack.enter_context(redis_client(stack.enter_context(workspace()), SERVER_CPU))
        except MissingPeerError as missing:
            section.trouble.append(str(missing))
        else:
            redis.set("key", payload)
            contenders["redis get"] = lambda: redis.get("key")
            contenders["redis set"] = lambda: redis.set("key", payload)
            _redis_pipelined(section, redis, payload)
        costs = interleaved(contenders, between=close_made)
        unpin()
    for name, value in costs.items():
        section.figure(f"{name}, {SIZE} B", value, "µs")
    return costs


def _redis_pipelined(section: Section, redis: Client, payload: bytes) -> None:
    count = 1000
    get = pipelined(redis, lambda pipeline: pipeline.get("key"), count)
    put = pipelined(redis, lambda pipeline: pipeline.set("key", payload), count)
    for name, call in (("GET", get), ("SET", put)):
        best = median([once(call) for _ in range(7)])
        section.figure(f"redis {name}, pipelined, two processors", count / best, "/s")


# -- vectors ------------------------------------------------------------------------------------------
def _vectors(section: Section) -> None:
    """Measure calls in one message, with both ends on one processor."""
    with running_node(CLIENT_CPU) as bench, dios.connect(bench.data, groups=[]) as node:
        pin(CLIENT_CPU)
        blob = node.create(dios.SHMEM_BLOB, naming=dios.ANONYMOUS, data=os.urandom(SIZE))
        kinds: dict[str, PlainCall] = {
            "stat": messages.Stat(blob.ref),
            "read": messages.ReadOnce(blob.ref),
        }
        for name, call in kinds.items():
            calls = [call] * VECTOR_CALLS_MAX
            taken = [once(lambda calls=calls: node.vector(calls)) for _ in range(25)]  # type: ignore[misc]
            rate = section.figure(f"vector of {name}, one processor", len(calls) / median(taken[5:]), "/s")
            if name == "read":
                section.rows.append(
                    Row(
                        f"vectored requests in one message, reads of {SIZE} B, one processor",
                        f"{number(rate)} /s",
                        "Redis, pipelined GET on two processors: see the figures",
                        least=judge("60,000 /s", rate, 60_000, below=False),
                        wanted=judge("150,000 /s", rate, 150_000, below=False),
                    )
                )
        unpin()


# -- Ray ----------------------------------------------------------------------------------------------
class _Keeper:
    """An actor that stores the value that is read."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload

    def read(self) -> bytes:
        """Return the value, as a user of actors would share a small value."""
        return self._payload


def _ray(section: Section) -> dict[str, float]:
    payload = os.urandom(SIZE)
    try:
        with ray_session() as (ray, seconds):
            section.figure("ray.init", seconds, "s")
            actor = cast("Actor", ray.remote(_Keeper).remote(payload))
            reference = ray.put(payload)
            ray.get(actor.read.remote())
            costs = interleaved(
                {
                    "ray put": lambda: ray.put(payload),
                    "ray get": lambda: ray.get(reference),
                    "ray actor call": lambda: ray.get(actor.read.remote()),
                },
                rounds=5,
                calls=100,
            )
    except MissingPeerError as missing:
        section.trouble.append(str(missing))
        return {}
    for name, value in costs.items():
        section.figure(f"{name}, {SIZE} B", value, "µs")
    return costs


# -- the result ---------------------------------------------------------------------------------------
def _rows(section: Section, costs: dict[str, float], ray: dict[str, float]) -> None:
    echo = costs["echo, bytes"]
    vectored = section.rows
    section.rows = []
    stat, read, repeated = costs["stat"], costs["read by a call"], costs["repeated read"]
    section.rows.append(
        Row(
            "one system call (stat), blocking client",
            f"{number(stat)} µs",
            f"bare trio echo {number(echo)} µs; with MessagePack {number(costs['echo, messages'])} µs",
            times(stat / echo) + " the bare echo",
            judge("1.6 x the echo", stat / echo, 1.6),
            judge("1.25 x", stat / echo, 1.25),
            f"{number(stat / costs['echo, messages'])} x the echo with MessagePack",
        )
    )
    get, actor = costs.get("redis get", NAN), ray.get("ray actor call", NAN)
    section.rows.append(
        Row(
            f"compound acquire-and-commit read of {SIZE} B, shared blob",
            f"{number(read)} µs",
            f"redis-py GET {number(get)} µs; Ray actor call {number(actor)} µs",
            f"{times(get / read)} faster than GET, {times(actor / read)} than the actor",
            _both(
                "faster than redis-py GET; 10 x faster than a Ray actor call", get > read, actor / read >= 10
            ),
            judge("below 20 µs beyond the echo", read - echo, 20),
            f"{number(read - echo)} µs beyond the bare echo",
        )
    )
    section.rows.append(
        Row(
            f"repeated read of {SIZE} B, without a call",
            f"{number(repeated)} µs",
            f"redis-py GET {number(get)} µs",
            f"{times(get / repeated)} faster than GET",
            judge("1.5 µs", repeated, 1.5),
            judge("20 x faster than redis-py GET", get / repeated, 20, below=False),
        )
    )
    creates = [costs[f"create {kind}"] for kind in _CREATE_KINDS]
    slowest, spread = max(creates), max(creates) - min(creates)
    put, ray_put = costs.get("redis set", NAN), ray.get("ray put", NAN)
    section.rows.append(
        Row(
            f"create a shared blob of {SIZE} B: " + ", ".join(_CREATE_KINDS),
            ", ".join(number(value) for value in creates) + " µs",
            f"redis-py SET {number(put)} µs; ray.put {number(ray_put)} µs",
            f"{times(put / slowest)} faster than SET, {times(ray_put / slowest)} than ray.put (the slowest)",
            _both("faster than redis-py SET; 6 x faster than ray.put", put > slowest, ray_put / slowest >= 6),
            judge("within 10 µs of each other", spread, 10),
        )
    )
    section.rows += vectored


def _both(text: str, first: bool, second: bool) -> Goal:  # noqa: FBT001 - two verdicts side by side
    return Goal(text, first and second)

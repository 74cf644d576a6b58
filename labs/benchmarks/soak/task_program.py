"""The program of a soak's tasks. It runs in a sandbox and cannot be imported.

Arguments: the kind of task, its duration in seconds, and the expected digest of the input.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import random
import sys
import time

import dios

WRONG_BYTES = 86
kind, length, expected = sys.argv[1:4]
node = dios.connect()
until = time.monotonic() + float(length)


def check(data: bytes, digest: str = expected) -> None:
    """End with a special exit status if bytes are not as expected."""
    if hashlib.blake2b(data, digest_size=16).hexdigest() != digest:
        sys.stdout.write("wrong bytes\n")
        sys.stdout.flush()
        os._exit(WRONG_BYTES)


def brief() -> None:
    """Read, compute, answer."""
    data = node.input("data").read_bytes()
    check(data)
    node.output("answer").write_bytes(hashlib.blake2b(data[::-1], digest_size=16).digest())
    sys.stdout.write("ok\n")


def long() -> None:
    """Run for a while, and create and delete objects of every kind."""
    while time.monotonic() < until:
        check(node.input("data").read_bytes())
        data = random.randbytes(random.choice((10, 3_000, 50_000)))  # noqa: S311 - data
        blobs = [node.create(dios.SHMEM_BLOB, data=data), node.create(dios.PRIVMEM_BLOB, data=data)]
        if random.random() < 0.2:  # noqa: S311 - a load
            counted = dios.Deletion.REFERENCE_COUNTED
            blobs.append(node.create(dios.DURABLE_BLOB, data=data, deletion=counted))
        with contextlib.closing(node.create_timer(random.uniform(0.5, 4.0))) as timer:  # noqa: S311 - a pause
            node.select([timer], timeout=5)
        for blob in blobs:
            check(blob.read_bytes(), hashlib.blake2b(data, digest_size=16).hexdigest())
            blob.close()


def memory() -> None:
    """Allocate more memory than the limit."""
    held = []
    while True:
        held.append(bytearray(b"x") * (8 << 20))


def spin() -> None:
    """Use more processor time than the limit."""
    for _ in itertools.count():
        pass


def flood() -> None:
    """Print more than the node keeps."""
    line = "x" * 1000
    for number in range(1000):
        sys.stdout.write(f"{number} {line}\n")


def family() -> None:
    """Start two children, wait for one, and leave the other."""
    assert node.executable is not None
    handed = {"data": node.input("data").restrict("read")}
    with node.create(dios.SHMEM_BLOB) as answer:
        first = node.run(
            node.executable,
            args=["brief", "0", expected],
            inputs=handed,
            outputs={"answer": answer.restrict("write")},
        )
        node.run(node.executable, args=["long", "60", expected], inputs=handed)
        first.wait(timeout=60)
    sys.stdout.write("ok\n")


def sender() -> None:
    """Fill a stream; the last message is the digest of the messages before."""
    stream = node.outputs[0]
    assert isinstance(stream, dios.Stream)
    whole = hashlib.blake2b(digest_size=16)
    for number in range(300):
        message = bytes([number % 256]) * random.choice((1, 100, 5_000))  # noqa: S311 - data
        whole.update(message)
        stream.send(message, timeout=30)
    stream.send(whole.digest(), timeout=30)


def receiver() -> None:
    """Wait for the delegation of an object, and check its digest."""
    event = node.next_event(timeout=float(length))
    assert isinstance(event, dios.Delegated)
    check(event.reference.read_bytes())
    sys.stdout.write("ok\n")


def careless() -> None:
    """End in the middle of requests, with open buffers."""
    blob = node.create(dios.SHMEM_BLOB, data=bytes(100_000))
    held = [blob.read(), blob.write(100_000, dios.ANY), blob.write(10, dios.ANY)]
    held[1].view[:4] = b"lost"
    os._exit(0)


def failing() -> None:
    """End with an exception."""
    raise ValueError("this failure is intended")


def exiting() -> None:
    """End with an exit status."""
    sys.exit(3)


KINDS = {
    "brief": brief,
    "long": long,
    "memory": memory,
    "spin": spin,
    "flood": flood,
    "family": family,
    "sender": sender,
    "receiver": receiver,
    "careless": careless,
    "failing": failing,
    "exiting": exiting,
}
if __name__ == "__main__":
    KINDS[kind]()

"""A reference that may only read gives memory that its holder cannot write, whatever it tries.

Not for: what the sandbox refuses anyway (``test_sandbox``); the memory must hold by itself where the
system can seal it, and then the tries are made outside the sandbox too.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dios
from dios.wire.types import Buffering, ObjectType
from tests.support.node.running_node import RunningNode, running_node

SIZE = 200_000

ATTEMPTS = """
import ctypes, fcntl, gc, mmap, os, sys
import dios
from dios.client.buffers import MappedMemory

with dios.connect() as node:
    request = node.inputs[0].read(dios.ANY)
    with request:
        view = request.view
        assert bytes(view[:4]) == b"good"
        (memory,) = [each for each in gc.get_objects() if isinstance(each, MappedMemory) and each._fd >= 0]
        fd = memory._fd
        libc = ctypes.CDLL(None, use_errno=True)
        def checked(result):
            if result in (-1, ctypes.c_void_p(-1).value):
                raise OSError(ctypes.get_errno(), "refused")
        address = ctypes.addressof(ctypes.c_char.from_buffer_copy(b"x"))
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
        libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        place = libc.mmap(None, 4096, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        def reopen():
            again = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
            os.pwrite(again, b"evil", 0)
        def own_memory():
            with open("/proc/self/mem", "r+b", buffering=0) as file:
                file.seek(place)
                file.write(b"evil")
        tries = {
            "assign": lambda: view.__setitem__(slice(0, 4), b"evil"),
            "write": lambda: os.pwrite(fd, b"evil", 0),
            "truncate": lambda: os.ftruncate(fd, 0),
            "punch": lambda: checked(libc.fallocate(fd, 3, ctypes.c_long(0), ctypes.c_long(4096))),
            "map": lambda: mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE),
            "protect": lambda: checked(libc.mprotect(place, 4096, mmap.PROT_READ | mmap.PROT_WRITE)),
            "remove": lambda: checked(libc.madvise(ctypes.c_void_p(place), 4096, 9)),
            "mode": lambda: (os.fchmod(fd, 0o600), reopen()),
            "reopen": reopen,
            "seals": lambda: fcntl.fcntl(fd, 1033, 0),
            "memory": own_memory,
        }
        for name in sys.argv[1:]:
            try:
                tries[name]()
                print(name, "went through")
            except (OSError, TypeError, ValueError) as error:
                print(name, "refused", error)
        print("still", bytes(view[:4]))
"""
ALL = (
    "assign",
    "write",
    "truncate",
    "punch",
    "map",
    "protect",
    "remove",
    "mode",
    "reopen",
    "seals",
    "memory",
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """A node of this test's own."""
    with running_node(tmp_path_factory.mktemp("read-only") / "node", accept_weaker_sandbox="no") as running:
        yield running


def _tries(node: RunningNode, kind: ObjectType, brand: str, buffering: Buffering = Buffering.DOUBLE) -> str:
    with dios.connect(node.place, groups=()) as session:
        blob = session.create(kind, groups=session.groups[:1], buffering=buffering)
        blob.write_bytes(b"good" * (SIZE // 4))
        task = session.run(ATTEMPTS.encode(), inputs=[blob.restrict("read")], args=ALL, brand=brand)
        status = task.wait(timeout=60)
        said = bytes(task.console().read_bytes()).decode()
        assert status is not None
        assert status.exit_code == 0, f"{status.detail}\n{said}"
        assert bytes(blob.read_bytes()) == b"good" * (SIZE // 4), said
        return said


def _refused(said: str) -> set[str]:
    return {line.split()[0] for line in said.splitlines() if " refused " in line}


@pytest.mark.parametrize(
    ("kind", "buffering"),
    [
        (ObjectType.SHMEM_BLOB, Buffering.DOUBLE),
        (ObjectType.SHMEM_BLOB, Buffering.RAW),
        (ObjectType.DURABLE_BLOB, Buffering.DOUBLE),
    ],
    ids=["double-buffered", "raw", "durable"],
)
def test_pure_task_cannot_write_what_it_may_read(
    node: RunningNode, kind: ObjectType, buffering: Buffering
) -> None:
    """In a pure task every way to the memory is refused, for sealed, raw and stored bytes."""
    said = _tries(node, kind, "pure", buffering)
    assert "still b'good'" in said
    assert _refused(said) == set(ALL), said


def test_sealed_memory_holds_without_the_sandbox(node: RunningNode) -> None:
    """A limbo task, with files and /proc, still cannot write a committed version: it is sealed for good."""
    # /proc/self/mem may write a private copy of a page; that this changes nothing is what counts.
    said = _tries(node, ObjectType.SHMEM_BLOB, "limbo")
    assert "still b'good'" in said
    assert {"assign", "write", "truncate", "punch", "map", "protect", "remove"} <= _refused(said), said

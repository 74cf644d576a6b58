"""Workers of an executor that attack it through blobs: they hurt their own call, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import numpy as np
import pytest

import dios
from dios.lib.executor.errors import NoWorkerError, UntrustedResultError, WorkerEndedError
from tests.support.node.running_node import RunningNode, wait_until

LARGE = 1_000_000

# The functions below run in a worker. They are sent as they are, and reach the worker's own objects.


def own_worker() -> object:
    """Return the object that runs this worker."""
    import gc

    return next(candidate for candidate in gc.get_objects() if type(candidate).__name__ == "_Worker")


def send(kind: str, *parts: bytes) -> str:
    """Send a frame that the worker would not send now, and go on."""
    from dios.lib.executor import frames

    own_worker().send(getattr(frames, kind), *parts)  # type: ignore[attr-defined]
    return "sent"


def number_of_call() -> bytes:
    """Return the number of the present call."""
    import sys

    frame = sys._getframe()
    while frame.f_code.co_name != "_call":
        assert frame.f_back is not None
        frame = frame.f_back
    return bytes(frame.f_locals["answer"])


def store_elsewhere(number: int) -> None:
    """Claim that the result is in a blob with this object id."""
    send("STORED", number_of_call(), number.to_bytes(8, "little"))


def store_bytes(data: bytes) -> None:
    """Send a result in a blob with these bytes."""
    data_of = own_worker()._data  # type: ignore[attr-defined]

    class Made:
        size = len(data)

        def parts(self) -> list[bytes]:
            return [data]

    store_elsewhere(data_of.store(Made()))


def ask_for(*numbers: int) -> str:
    """Ask for blobs by their object ids."""
    import msgspec

    return send("WANTED", msgspec.msgpack.encode(numbers))


def ask_again(values: object) -> str:
    """Ask for the blob of the argument, which the worker has."""
    del values
    return ask_for(*own_worker()._data._views)  # type: ignore[attr-defined]


def claim_argument(values: object) -> None:
    """Claim that the result is in the blob of the argument."""
    del values
    store_elsewhere(next(iter(own_worker()._data._views)))  # type: ignore[attr-defined]


def ask_blanks(count: int) -> str:
    """Ask for many blobs for one result."""
    for _ in range(count):
        send("BLANK")
    return "sent"


def store_twice() -> None:
    """Use the same blob for a second result, which belongs to the next call."""
    data_of = own_worker()._data  # type: ignore[attr-defined]
    from dios.lib.executor.values import encode_parts

    used = data_of.store(encode_parts(list(range(10))))
    store_elsewhere(used)
    store_elsewhere(used)


def refuse_twice(*values: object) -> None:
    """Say again and again that the arguments cannot be loaded."""
    del values
    send("UNREADABLE", number_of_call())


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """One node for all tests of this module."""
    running = RunningNode(tmp_path_factory.mktemp("hostile") / "data", {})
    yield running
    running.stop()


@pytest.fixture(scope="module")
def executor(node: RunningNode) -> Iterator[dios.Executor]:
    """An executor with one worker at a time."""
    with dios.Executor(1, node=node.place) as executor:
        yield executor


ATTACKS: dict[str, tuple[Callable[..., object], tuple[object, ...]]] = {  # type: ignore[explicit-any]
    "a result in a blob that it was not given": (store_elsewhere, (12345,)),
    "a result in object 0": (store_elsewhere, (0,)),
    "a result in the blob of an argument": (claim_argument, (np.ones(LARGE),)),
    "one blob for two results": (store_twice, ()),
    "a blob that does not belong to its calls": (ask_for, (98765,)),
    "a blob that it has": (ask_again, (np.ones(LARGE),)),
    "a negative object id": (ask_for, (-1,)),
    "the same blob many times": (ask_for, (5,) * 1000),
    "a question that is none": (send, ("WANTED", b"\xc1")),
    "a question with text": (send, ("WANTED", b"\x91\xa1x")),
    "more blobs than results": (ask_blanks, (5,)),
    "arguments that cannot be loaded": (refuse_twice, ()),
    "large arguments that cannot be loaded, twice": (refuse_twice, (np.ones(LARGE),)),
    "arguments of no call": (send, ("UNREADABLE", bytes(8))),
    "a short frame": (send, ("STORED", b"1")),
    "a result of no call": (send, ("STORED", bytes(16))),
    "frames for workers": (send, ("DROPPED", b"\x90")),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_worker_that_forges_references_is_ended(executor: dios.Executor, name: str) -> None:
    """The worker ends, its call fails or has a result, and the next calls run in another worker."""
    function, arguments = ATTACKS[name]
    lost = executor.stats().workers_lost
    future = executor.submit(function, *arguments)
    assert future.exception(60) is None or isinstance(future.exception(60), WorkerEndedError)
    wait_until(lambda: executor.stats().workers_lost > lost, "the worker is ended")
    assert executor.submit(np.ones, LARGE).result(60).sum() == LARGE


@pytest.mark.parametrize(
    "name", ["a blob that does not belong to its calls", "a blob that it has", "more blobs than results"]
)
def test_an_initializer_gets_its_own_data_alone(node: RunningNode, name: str) -> None:
    """A worker whose initializer asks for other blobs, or for blobs of results, is ended."""
    function, arguments = ATTACKS[name]
    with dios.Executor(1, node=node.place, initializer=function, initargs=arguments) as executor:
        with pytest.raises(NoWorkerError, match=r"a worker (asked|sent)"):
            executor.submit(abs, -1).result(60)
        assert executor.stats().workers_lost == executor.stats().workers_started > 1


@pytest.mark.parametrize(
    "data", [b"x", bytes(64), b"\x02" + bytes(7) + b"\x01" + bytes(7) + b"\xff" * 8, b"\x02" + bytes(500)]
)
def test_a_blob_with_other_bytes_hurts_its_call_alone(executor: dios.Executor, data: bytes) -> None:
    """A blob that is no result is refused when somebody asks for it, by the caller and by other workers."""
    lost = executor.stats().workers_lost
    future = executor.submit(store_bytes, data)
    with pytest.raises(UntrustedResultError):
        future.result(60)
    wait_until(lambda: executor.stats().workers_lost > lost, "the second answer is refused")
    with pytest.raises(UntrustedResultError):
        executor.submit(len, future).result(60)
    assert executor.submit(abs, -1).result(60) == 1


def fail_to_store() -> object:
    """Return a large result that cannot be written the first time."""
    from dios.lib.executor import worker_data

    original = vars(worker_data)["write_parts"]

    def failing(*_: object) -> None:
        vars(worker_data)["write_parts"] = original
        raise MemoryError("no room")

    vars(worker_data)["write_parts"] = failing
    return np.ones(LARGE)


def test_a_result_that_cannot_be_stored_is_an_error_of_its_call(executor: dios.Executor) -> None:
    """The worker lives on, and uses the same blob for its next result."""
    lost = executor.stats().workers_lost
    with pytest.raises(MemoryError, match="no room"):
        executor.submit(fail_to_store).result(60)
    assert executor.submit(np.ones, LARGE).result(60).sum() == LARGE
    assert executor.stats().workers_lost == lost


def keep_the_blob() -> object:
    """Return a large result, and keep a writable reference and a writable mapping of its blob."""
    import builtins

    from dios.lib.executor import worker_data
    from dios.wire.types import Semantics

    def written(blob: dios.Reference, parts: list[bytes]) -> None:
        data = bytearray()
        for part in parts:
            data += bytes(-len(data) % 64) + part
        request = blob.write(len(data), Semantics.ANY, blank=True, replace=True)
        request.view[:] = data
        builtins.kept = blob, memoryview(request.view)  # type: ignore[attr-defined]
        request.commit()

    dios.Reference.close = lambda _: None
    vars(worker_data)["write_parts"] = written
    return np.ones(LARGE)


def change_the_blob() -> list[str]:
    """Try to change the bytes of the former result in every way."""
    import builtins

    blob, view = builtins.kept  # type: ignore[attr-defined]
    failed = []
    for attempt in (
        lambda: view.__setitem__(slice(0, 100_000), b"x" * 100_000),
        lambda: blob.write_bytes(b"x" * 100),
        lambda: blob.write_bytes(b"x" * 100_000),
        lambda: blob.write(10),
        blob.destroy,
    ):
        try:
            attempt()
        except (dios.DiosError, ValueError, TypeError) as error:
            failed.append(type(error).__name__)
        else:
            failed.append("done")
    return failed


def test_a_result_does_not_change_after_it_was_handed_over(node: RunningNode) -> None:
    """Neither a kept mapping nor a kept reference changes what the caller reads later, or twice."""
    with dios.Executor(1, node=node.place) as executor:
        future = executor.submit(keep_the_blob)
        sums = executor.submit(np.sum, future).result(60)
        attempts = executor.submit(change_the_blob).result(60)
        assert "done" not in attempts[1:]
        assert future.result(60).sum() == sums == LARGE  # type: ignore[attr-defined]


def keep_arguments() -> None:
    """Keep the references that the worker gets for arguments."""
    import builtins

    from dios.lib.executor import worker_data

    original = vars(worker_data)["map_blob"]

    def kept(blob: dios.Reference, *, private: bool) -> memoryview:
        builtins.argument = blob  # type: ignore[attr-defined]
        type(blob).close = lambda _: None
        return cast("memoryview", original(blob, private=private))

    vars(worker_data)["map_blob"] = kept


def misuse_argument(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> list[str]:
    """Try to change an argument that other workers read."""
    import builtins

    blob = builtins.argument  # type: ignore[attr-defined]
    failed = []
    for attempt in (
        lambda: values.__setitem__(0, 5.0),
        lambda: values.setflags(write=True),
        lambda: blob.write_bytes(b"x" * 100),
        blob.destroy,
        blob.retire,
        lambda: blob.delegate(dios.connect().self, "read"),
    ):
        try:
            attempt()
        except (dios.DiosError, ValueError, TypeError, OSError) as error:
            failed.append(type(error).__name__)
        else:
            failed.append("done")
    return failed


def test_a_worker_can_only_read_its_arguments(node: RunningNode) -> None:
    """The reference of a worker to an argument has the right to read, and its memory is sealed."""
    values = np.ones(LARGE)
    with dios.Executor(1, node=node.place) as executor:
        executor.submit(keep_arguments).result(60)
        attempts = executor.submit(misuse_argument, values).result(60)
        assert attempts[:4] == ["ValueError", "ValueError", "NotPermittedError", "NotPermittedError"]
        assert attempts[5] == "NotPermittedError"
        assert executor.submit(np.sum, values).result(60) == LARGE


def write_through_the_kernel(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> int:
    """Ask the kernel to make the memory of an argument writable; return the error number."""
    import ctypes

    address = values.ctypes.data & ~4095
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(4096), 3)
    return ctypes.get_errno() if done else 0


def test_the_kernel_protects_the_memory_of_arguments(executor: dios.Executor) -> None:
    """A worker cannot make the shared memory of an argument writable."""
    assert executor.submit(write_through_the_kernel, np.ones(LARGE)).result(60) != 0

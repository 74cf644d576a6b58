"""Arrays, tables and files over the bytes of objects: of a real node, read in place."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest

import dios
from dios.errors import InvalidError
from tests.support.client.loops import on_both_loops
from tests.support.node.running_node import running_node

Array: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.generic]]"  # type: ignore[explicit-any]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dios.Node]:
    """A connection to one node for all tests of this module."""
    with (
        running_node(tmp_path_factory.mktemp("arrays") / "data") as running,
        dios.connect(running.place, groups=()) as node,
    ):
        yield node


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype="<i4").reshape(3, 4),
        np.asfortranarray(np.arange(60_000, dtype="f8").reshape(300, 200)),
        np.arange(100_000)[::3],
        np.arange(200_000).reshape(10, 200, 100)[:, ::2, 1:],
        np.float64(1.5),
        np.zeros((0, 3), "u1"),
        np.array(["2026-01-01", "NaT"], "M8[s]"),
        np.array([(1, 2.5)], [("a", "i8"), ("b", "f4")]),
        np.array(["ab", "c"]),
    ],
    ids=lambda array: f"{array.dtype} {array.shape}",
)
def test_an_array_comes_back_with_its_type_and_shape(node: dios.Node, array: Array) -> None:
    """Small and large, contiguous or not: the object describes itself, and numpy.load reads it."""
    stored = node.create_array(array)
    view = stored.numpy()
    assert (view.dtype, view.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(view, array)
    assert not view.flags.writeable
    np.testing.assert_array_equal(np.load(stored.open("rb")), array)


def test_an_array_is_the_object_itself_and_stays_when_it_is_gone(node: dios.Node) -> None:
    """Two arrays of one object share memory that is not copied; a write or the end of the object changes
    neither.
    """
    stored = node.create_array(np.arange(1_000_000))
    first = stored.numpy()
    assert isinstance(_root(first), memoryview), "the array's bytes are the mapped object"
    stored.write_bytes(bytes(stored.size))
    assert first[-1] == 999_999
    stored.destroy()
    assert int(first.sum()) == 499_999_500_000


def _root(array: Array) -> object:
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base


def test_bytes_of_any_object_are_an_array_of_the_given_type(node: dios.Node) -> None:
    """With a type, the content is taken as it is; what does not fit is refused with a reason."""
    blob = node.create(dios.SHMEM_BLOB, naming=dios.ANONYMOUS, data=bytes(range(24)))
    assert blob.numpy("u1").tolist() == list(range(24))
    assert blob.numpy("<u4", (2, -1)).shape == (2, 3)
    for dtype, shape in (("u8", (4,)), ("u2", (5, -1)), ("f8", (7,)), (object, None), ("nonsense", None)):
        with pytest.raises(InvalidError):
            blob.numpy(dtype, shape)
    with pytest.raises(InvalidError, match="must be given"):
        blob.numpy()


@pytest.mark.parametrize(
    "damage",
    [
        b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(128),
        b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (99,), }".ljust(128),
        b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }".ljust(128),
        b"\x93NUMPY\x01\x00v\x00__import__('os').abort()".ljust(128),
        b"\x93NUMPY\x09\x00",
        b"\x93NUMPY",
    ],
)
def test_a_hostile_head_is_refused(node: dios.Node, damage: bytes) -> None:
    """Python objects, more items than bytes, code and other versions are errors, never more."""
    blob = node.create(dios.SHMEM_BLOB, naming=dios.ANONYMOUS, data=damage)
    with pytest.raises(InvalidError):
        blob.numpy()


@pytest.mark.parametrize("array", [np.array([object()]), np.ma.masked_array([1, 2], [True, False])])
def test_arrays_that_would_lose_something_are_refused(node: dios.Node, array: Array) -> None:
    """Python objects and masks are not stored."""
    with pytest.raises(InvalidError):
        node.create_array(array)


def test_a_table_comes_back(node: dios.Node) -> None:
    """Tables of pyarrow, pandas and Polars are stored as Arrow, and read without a copy."""
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table({"x": range(100_000), "y": ["a", "b"] * 50_000})
    stored = node.create_table(table)
    before = arrow.total_allocated_bytes()
    view = stored.arrow()
    assert arrow.total_allocated_bytes() - before < 10_000, "the columns are the object's bytes"
    assert view.equals(table)
    for library in ("pandas", "polars"):
        frame = pytest.importorskip(library).DataFrame({"x": [1, 2], "y": ["a", None]})
        assert node.create_table(frame).arrow().to_pydict() == {"x": [1, 2], "y": ["a", None]}
    with pytest.raises(InvalidError):
        node.create_table(17)
    with pytest.raises(InvalidError):
        node.create(dios.SHMEM_BLOB, naming=dios.ANONYMOUS, data=b"no table").arrow()


@pytest.mark.parametrize("size", [0, 10, 100_000])
def test_a_reference_opens_as_a_seekable_file(node: dios.Node, size: int) -> None:
    """The file reads, seeks, peeks and iterates like one of the same bytes on disk."""
    data = (b"line of text\n" * (size // 13 + 1))[:size]
    blob = node.create(dios.SHMEM_BLOB, naming=dios.ANONYMOUS, data=data)
    with blob.open("rb") as file:
        same = io.BytesIO(data)
        assert isinstance(file, io.BufferedIOBase)
        assert file.read(5) == same.read(5)
        assert file.readline() == same.readline()
        assert file.readline(3) == same.readline(3)
        assert file.tell() == same.tell()
        assert list(file) == list(same)
        assert file.seek(-size // 2, 2) == same.seek(-size // 2, 2)
        target = bytearray(7)
        assert file.readinto(target) == same.readinto(bytearray(7))
        assert file.read() == same.read()
        assert file.seek(10, 1) == same.seek(10, 1)
        assert file.read() == b""
        assert bytes(file.getbuffer()) == data
        with pytest.raises(ValueError, match="before the beginning"):
            file.seek(-1)
    with pytest.raises(ValueError, match="closed"):
        file.read()
    with io.TextIOWrapper(blob.open()) as text:
        assert text.read() == data.decode()
    with pytest.raises(InvalidError):
        blob.open("wb")


@on_both_loops
async def test_the_async_client_has_them(tmp_path: Path) -> None:
    """The same operations with await."""
    with running_node(tmp_path / "data") as running:
        async with dios.open_node(running.place, groups=()) as node:
            stored = await node.create_array([1, 2, 3], durable=True)
            assert (await stored.numpy()).tolist() == [1, 2, 3]
            assert len(await stored.view_bytes()) == stored.size
            assert (await stored.open("rb")).read(6) == b"\x93NUMPY"

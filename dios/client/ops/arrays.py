"""The bytes of an object as a view, a file, an array or a table, without a copy; writing them takes one.

An array is stored as an ``.npy`` file, a table as an Arrow IPC file, so that ``numpy.load`` and every program
that reads Arrow understand them. numpy and pyarrow are imported by the operations that need them only.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar, cast

from dios.client.blob_file import BlobFile
from dios.client.buffers import MappedMemory, memory_of
from dios.client.ops.attributes import Handle, NodeBase
from dios.client.ops.nodes import refs_of
from dios.client.ops.requests import WriteOps
from dios.client.session import Operation, expect, expect_buffer
from dios.errors import InvalidError, NotSupportedError, OutOfMemoryError
from dios.installation import extra_command
from dios.wire import messages
from dios.wire.types import Flag, NameKind, ObjectType, Semantics

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

R = TypeVar("R", bound=Handle)

# numpy's own parameter of np.generic has Any as its default.
Array: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.generic]]"  # type: ignore[explicit-any]
Shape: TypeAlias = "int | Sequence[int] | None"
ItemType: TypeAlias = "str | type[object] | np.dtype[np.generic] | None"  # type: ignore[explicit-any]

_MAGIC: Final = b"\x93NUMPY"
_HEAD_BYTES_MAX: Final = 64 * 1024


class ContentOps(Handle):
    """Reading the whole content of an object, or a range of it, in place."""

    __slots__ = ()

    def view_bytes_op(self, size: int = 0, offset: int = 0) -> Operation[memoryview]:
        """Return a read-only view of ``size`` bytes (0: all) from ``offset`` on, without a copy.

        It takes one message, or none if this process still has the object's present bytes. The view stays
        valid when the handle is closed and when the object is written or destroyed: it keeps the bytes as
        they were. Only the bytes of an object with RAW buffering change.
        """
        here = self.direct(size, offset, Semantics.ANY)
        if here is not None:
            return memoryview(here)[:]
        counted = self.uncounted()
        call = messages.ReadOnce(self._info.ref, size, offset, Semantics.ANY, counted=counted)
        result, fd = expect_buffer((yield call))
        self.has_reported(counted)
        memory = memory_of(result, fd, writable=False)
        try:
            view = self._viewed(memory)
        finally:
            memory.close()
        self.has_read(result.v_w, view, offset)
        return view[:]

    def _viewed(self, memory: MappedMemory) -> memoryview:
        try:
            return memory.view().toreadonly()[:]
        except OutOfMemoryError:
            # Bytes that are kept for further reads may fill the address space.
            if self.link.page is None:
                raise
            self.link.page.drop_kept()
            return memory.view().toreadonly()[:]

    def open_op(self, mode: str = "rb") -> Operation[BlobFile]:
        """Return the content as a seekable file for reading, as the bytes are now, without a copy.

        InvalidError for another mode than "rb": ``write_bytes`` and ``write`` change an object.
        """
        if mode != "rb":
            raise InvalidError(f"an object is opened with mode 'rb', not {mode!r}. Write it with `write`.")
        return BlobFile((yield from self.view_bytes_op()))

    def numpy_op(self, dtype: ItemType = None, shape: Shape = None) -> Operation[Array]:
        """Return the content as a read-only numpy array, without a copy.

        Without ``dtype`` the object must be an array of ``create_array`` or an ``.npy`` file, which has its
        own type and shape. With it the bytes are the items of an array in C order, with ``shape`` (one number
        of items may be -1) or one dimension. The array stays valid like a view of ``view_bytes``. Raises
        InvalidError if the bytes do not fit or the type has Python objects, NotSupportedError without numpy.
        """
        return _array_of((yield from self.view_bytes_op()), dtype, shape)

    def arrow_op(self) -> Operation[pa.Table]:
        """Return the content, an Arrow IPC file (as of ``create_table``) or stream, as a pyarrow table.

        Its columns are the object's own bytes, without a copy, unless they are compressed. Raises
        InvalidError if the content is neither, NotSupportedError without pyarrow.
        """
        return _table_of((yield from self.view_bytes_op()))


class ArrayMakers(NodeBase, Generic[R]):
    """The operations that create arrays and tables."""

    def create_array_op(
        self, array: object, *, groups: Iterable[Handle] = (), durable: bool = False, host: str = ""
    ) -> Operation[R]:
        """Create an object with the bytes of ``array``, copied once; ``numpy`` of a reference reads it back.

        It is in memory unless ``durable``, anonymous if it is in no group, and on the node called ``host``,
        by default this node. Raises InvalidError for arrays of Python objects, NotSupportedError without
        numpy.
        """
        numpy = _loaded("numpy", "arrays")
        if isinstance(array, numpy.ma.MaskedArray):
            raise InvalidError("a masked array cannot be stored: fill it, or store its data and its mask")
        source = cast("Array", numpy.asarray(array))
        if source.dtype.hasobject:
            raise InvalidError(f"an array of {source.dtype} holds Python objects, which cannot be stored")
        head = io.BytesIO()
        npy = import_module("numpy.lib.format")
        npy.write_array_header_1_0(head, npy.header_data_from_array_1_0(source))
        size = head.tell() + source.nbytes
        blob = yield from self._create_blob(groups, durable=durable, host=host)

        def fill(request: WriteOps) -> None:
            request.fill(memoryview(head.getvalue()))
            if not source.nbytes:
                return
            flat = source.T if source.flags.f_contiguous else source
            if flat.flags.c_contiguous:
                request.fill(memoryview(flat.reshape(-1).view(numpy.uint8)).cast("B"), head.tell())
                return
            with request.view[head.tell() :] as part:
                numpy.copyto(numpy.frombuffer(part, source.dtype).reshape(source.shape), source)

        yield from _write(blob, size, fill)
        return blob

    def create_table_op(
        self, table: object, *, groups: Iterable[Handle] = (), durable: bool = False, host: str = ""
    ) -> Operation[R]:
        """Create an object with a table as an Arrow IPC file, copied once; ``arrow`` of a reference reads it.

        ``table`` is a pyarrow table or record batch, or a frame with the Arrow interface, such as those of
        Polars, pandas and DuckDB. It is in memory unless ``durable``, anonymous if it is in no group, and on
        the node called ``host``, by default this node. Raises InvalidError if it is no table,
        NotSupportedError without pyarrow.
        """
        arrow = _loaded("pyarrow", "tables")
        try:
            rows = table if isinstance(table, arrow.Table) else arrow.table(table)
        except (TypeError, arrow.ArrowException) as error:
            raise InvalidError(f"{type(table).__name__} cannot be stored as a table: {error}") from None
        measured = arrow.MockOutputStream()
        _write_rows(arrow, measured, rows)
        blob = yield from self._create_blob(groups, durable=durable, host=host)

        def fill(request: WriteOps) -> None:
            # The sink keeps the view until it is closed; afterwards the buffer can be unmapped.
            with arrow.FixedSizeBufferWriter(arrow.py_buffer(request.view)) as sink:
                _write_rows(arrow, sink, rows)

        yield from _write(blob, measured.size(), fill)
        return blob

    def _create_blob(self, groups: Iterable[Handle], *, durable: bool, host: str) -> Operation[R]:
        inside = refs_of(groups)
        kind = ObjectType.DURABLE_BLOB if durable else ObjectType.SHMEM_BLOB
        naming = NameKind.RANDOM if inside else NameKind.ANONYMOUS
        created = expect(messages.Created, (yield messages.Create(kind, inside, naming, host=host)))
        return cast("R", self.handle(created.reference, created.name))


def _write(blob: Handle, size: int, fill: Callable[[WriteOps], None]) -> Operation[None]:
    """Write the first content of a new object, which is destroyed if that fails."""
    request = WriteOps(blob, size, 0, Semantics.ANY, blank=True, replace=True)
    try:
        yield from request.acquire_op()
        fill(request)
        yield from request.finish_op(size)
    except BaseException as error:
        if isinstance(error, Exception):
            yield from request.release_op()
            yield messages.Delete(blob.ref, int(Flag.DESTROY))
        raise


def _write_rows(arrow: ModuleType, sink: object, rows: pa.Table) -> None:
    with arrow.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows)


def _array_of(view: memoryview, dtype: ItemType, shape: Shape) -> Array:
    numpy = _loaded("numpy", "arrays")
    if dtype is None:
        return _self_described(numpy, view, shape)
    try:
        kind = numpy.dtype(dtype)
        if kind.hasobject or not kind.itemsize:
            raise InvalidError(f"bytes cannot be an array of {kind}")
        array = numpy.frombuffer(view, kind) if view.nbytes else numpy.empty(0, kind)
        array.flags.writeable = False
        return cast("Array", array if shape is None else array.reshape(shape))
    except (TypeError, ValueError) as error:
        raise InvalidError(f"{view.nbytes} bytes are no array of {dtype} with this shape: {error}") from None


def _self_described(numpy: ModuleType, view: memoryview, shape: Shape) -> Array:
    if bytes(view[: len(_MAGIC)]) != _MAGIC:
        raise InvalidError("the object is no .npy file, so the type of its items must be given: numpy(dtype)")
    npy = import_module("numpy.lib.format")
    head = io.BytesIO(view[:_HEAD_BYTES_MAX])
    try:
        version = npy.read_magic(head)
        if version not in {(1, 0), (2, 0)}:
            raise InvalidError(f"the object is an .npy file of version {version}, which is not supported")
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        stored, fortran, kind = read(head)
        if min(stored, default=0) < 0:
            raise InvalidError(f"the object is a damaged .npy file: its shape is {stored}")
        if kind.hasobject:
            raise InvalidError("the object is an array of Python objects, which are not read from bytes")
        count = math.prod(stored)
        flat = (
            numpy.frombuffer(view, kind, count, head.tell())
            if count and kind.itemsize
            else numpy.empty(count, kind)
        )
        flat.flags.writeable = False
        array = flat.reshape(stored, order="F" if fortran else "C")
        return cast("Array", array if shape is None else array.reshape(shape))
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidError(f"the object is a damaged .npy file, or has another shape: {error}") from None


def _table_of(view: memoryview) -> pa.Table:
    arrow = _loaded("pyarrow", "tables")
    buffer = arrow.py_buffer(view)
    is_file = bytes(view[:6]) == b"ARROW1"
    try:
        opened = arrow.ipc.open_file(buffer) if is_file else arrow.ipc.open_stream(buffer)
        table = opened.read_all()
        table.validate()
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise InvalidError(f"the object is no Arrow IPC file or stream: {error}") from None
    return table


def _loaded(name: str, purpose: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError:
        raise NotSupportedError(
            f"{name} is not installed, which {purpose} need. Install it: {extra_command('data')}"
        ) from None

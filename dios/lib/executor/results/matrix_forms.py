"""The forms of the sparse arrays and matrices of scipy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, cast

import numpy as np
import scipy.sparse as sp

from dios.lib.executor.results.array_forms import Array
from dios.lib.executor.results.forms import Reading, form, refusal, register, require

_TYPES: Final = {
    kind.__name__: kind
    for kind in (
        *(sp.csr_array, sp.csc_array, sp.coo_array, sp.bsr_array, sp.dia_array, sp.lil_array, sp.dok_array),
        *(
            sp.csr_matrix,
            sp.csc_matrix,
            sp.coo_matrix,
            sp.bsr_matrix,
            sp.dia_matrix,
            sp.lil_matrix,
            sp.dok_matrix,
        ),
    )
}
SPARSE_TYPES: Final = frozenset(_TYPES.values())
_BY_COORDINATES: Final = frozenset({"coo", "dok"})
_BY_ROWS: Final = frozenset({"csr", "csc", "bsr", "lil"})


def _parts(matrix: sp.sparray) -> Iterable[object]:
    stored = {"lil": sp.csr_array, "dok": sp.coo_array}.get(matrix.format, lambda same: same)(matrix)
    if matrix.format in _BY_COORDINATES:
        arrays = (stored.data, *stored.coords)
    elif matrix.format in _BY_ROWS:
        arrays = (stored.data, stored.indices, stored.indptr)
    else:
        arrays = (stored.data, stored.offsets)
    return type(matrix).__name__, tuple(map(int, matrix.shape)), *map(np.asarray, arrays)


def _matrix(items: list[object], reading: Reading) -> object:
    name, shape, *rest = items
    require(items, str, tuple, *[np.ndarray] * len(rest))
    cls = _TYPES[cast("str", name)]
    sizes = cast("tuple[int, ...]", shape)
    data, *places = cast("list[Array]", rest)
    if {type(size) for size in sizes} != {int} or data.dtype.kind not in "biufc":
        raise refusal("a sparse matrix of other values than numbers")
    if any(array.dtype.kind != "i" or array.ndim != 1 for array in places):
        raise refusal("a sparse matrix with other places than integers")
    layout = cls.__name__.partition("_")[0]
    if layout in _BY_COORDINATES:
        stored = sp.coo_array((data, tuple(places)), shape=sizes)
    elif layout == "dia":
        stored = sp.dia_array((data, places[0]), shape=sizes)
    else:
        stored_type = {"csc": sp.csc_array, "bsr": sp.bsr_array}.get(layout, sp.csr_array)
        stored = stored_type((data, *places), shape=sizes)
        # Routines in C++ use the places as they are.
        stored.check_format(full_check=True)
    reading.check_time()
    return stored if cls is type(stored) else cls(stored)


register(
    __name__,
    (
        form(
            72,
            tuple(_TYPES.values()),
            _parts,
            None,
            _matrix,
            schema=lambda matrix: (matrix.dtype, matrix.shape, matrix.nnz),
        ),
    ),
)

"""The matrix of values that a worker can return; docs/executor.md has its summary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

import numpy as np
import pandas as pd
import pytest

from dios.lib.executor.errors import UntrustedResultError
from dios.lib.executor.values import decode_result, decode_stored, encode_parts, encode_result
from tests.support.result_values import REFUSED, VALUES, difference


def objects(value: object) -> object:
    """Return an array of objects with a value."""
    array = np.empty(2, dtype=object)
    array[0] = value
    return array


CONTAINERS: Final[dict[str, Callable[[object], object]]] = {
    "list": lambda value: [value, value],
    "tuple": lambda value: (1, value),
    "dict": lambda value: {"a": value, "b": {2: value}},
    "object array": objects,
}
_SCALARS: Final = (int, float, str, bytes, type(None))


def as_blob(value: object) -> memoryview:
    """Return the bytes of a blob with a result, as a worker writes them."""
    blob = bytearray()
    for part in encode_parts(value).parts():
        blob += bytes(-len(blob) % 64) + part
    return memoryview(blob)


@pytest.mark.parametrize("name", VALUES)
def test_a_value_comes_back_equal(name: str) -> None:
    """A value has the same type, schema and content after the way, in a message and in a blob."""
    value = VALUES[name]
    assert not difference(value, decode_result(bytearray(encode_result(value)), trust=False))
    assert not difference(value, decode_stored(as_blob(value), trust=False))


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_value_in_a_container_comes_back_equal(container: str) -> None:
    """A value in a container is the same, too, and one that occurs twice is one object again."""
    changed = []
    for name, value in VALUES.items():
        outer = CONTAINERS[container](value)
        decoded = decode_result(bytearray(encode_result(outer)), trust=False)
        is_shared = not isinstance(decoded, list) or isinstance(value, _SCALARS) or decoded[0] is decoded[1]
        if difference(outer, decoded) or not is_shared:
            changed.append(name)
    assert changed == []


@pytest.mark.parametrize("name", REFUSED)
def test_a_value_that_would_change_is_refused(name: str) -> None:
    """The worker refuses such a value, with its type in the reason."""
    with pytest.raises(UntrustedResultError, match="the result contains a"):
        encode_result(REFUSED[name]())


def test_types_that_are_equal_without_their_extras_are_refused() -> None:
    """Metadata and alignment of a type, also of a field, would be lost, whatever was sent before."""
    for plain, other in (
        (np.dtype("i4"), np.dtype("i4", metadata={"unit": "m"})),
        (np.dtype([("a", "i4")]), np.dtype([("a", np.dtype("i4", metadata={"unit": "m"}))])),
        (np.dtype([("a", "i4"), ("b", "i4")]), np.dtype([("a", "i4"), ("b", "i4")], align=True)),
        (np.dtype([("a", "i4", 3)]), np.dtype([("a", np.dtype("i4", metadata={"unit": "m"}), 3)])),
    ):
        encode_result(plain)
        with pytest.raises(UntrustedResultError, match="more than names and numbers"):
            encode_result(other)


def test_frequencies_that_take_long_to_check_are_for_few_dates() -> None:
    """Pandas checks some frequencies by code for each date: many such dates are refused, and days are not."""
    encode_result(pd.date_range("2000", periods=5_000, freq="B"))
    with pytest.raises(UntrustedResultError, match="2,000 dates with the frequency CBME"):
        encode_result(pd.date_range("1700", periods=3_000, freq="CBME"))


def test_the_matrix_is_as_large_as_the_documentation_says() -> None:
    """At least 96 % of more than 120 values come back equal, and the others are refused."""
    assert len(VALUES) > 120
    assert len(VALUES) / (len(VALUES) + len(REFUSED)) > 0.96


def test_arrays_can_be_changed() -> None:
    """Arrays use the memory of the message, which belongs to the caller."""
    data = bytearray(encode_result((np.arange(4), pd.DataFrame({"a": [1]}))))
    array, frame = cast("tuple[list[int], pd.DataFrame]", decode_result(data, trust=False))
    array[0] = 7
    frame.loc[0, "a"] = 7
    assert array[0] == frame.a[0] == 7

"""A reference to a labelled object whose size and versions its holder sees after the first read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

from dios.wire.types import ObjectType, Proximity, Semantics


class LabelledReference:
    """The object has these bytes and this version; ``refusal`` is the error of reading them."""

    type = ObjectType.DURABLE_BLOB
    proximity = Proximity.NODE
    zombie = False
    secrecy = ("uid:1000/payroll",)
    fingerprint = "f"

    def __init__(
        self,
        data: bytes,
        v_w: int = 1,
        *,
        refusal: Exception | None = None,
        node: str = "n1",
        label: str = "",
    ) -> None:
        self.data = data
        self.node = node
        self.label = label
        self.object_id = self.ref = hash(node)
        self._v_w = v_w
        self._refusal = refusal
        self._is_read = False

    @property
    def size(self) -> int:
        """The size, if it is known."""
        return len(self.data) if self._is_read else 0

    @property
    def v_w(self) -> int:
        """The version, if it is known."""
        return self._v_w if self._is_read else 0

    def read_bytes(self, size: int = 0, offset: int = 0) -> bytes:
        """Read, and know the size and the version from now on."""
        if self._refusal is not None:
            raise self._refusal
        self._is_read = True
        return self.data[offset : offset + size if size else None]

    def view_bytes(self) -> memoryview:
        """View all bytes."""
        return memoryview(self.read_bytes())

    @contextmanager
    def read(self, _: Semantics, *, size: int, offset: int) -> Iterator[SimpleNamespace]:
        """Read a range."""
        yield SimpleNamespace(view=memoryview(self.read_bytes(size, offset)))

    def close(self) -> None:
        """Close the reference."""

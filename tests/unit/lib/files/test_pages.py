"""The pages of a file that is being written are the bytes of ordinary memory, wherever it is changed."""

from __future__ import annotations

import io

from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from dios.lib.catalogue import Part
from dios.lib.files.pages import Pages

PAGE = 8
MOST = 2


class Store:
    """Parts in a dictionary."""

    def __init__(self) -> None:
        self.parts: dict[bytes, bytes] = {}
        self.names = 0

    def store(self, data: memoryview) -> Part:
        """Keep the bytes under a new name."""
        self.names += 1
        name = b"%032d" % self.names
        self.parts[name] = bytes(data)
        return Part(name, blake3(data).digest())

    def load(self, part: Part) -> memoryview:
        """Return the bytes."""
        return memoryview(self.parts[part.name])

    def drop(self, part: Part) -> None:
        """Forget the bytes."""
        del self.parts[part.name]


steps = st.tuples(st.sampled_from(["write", "read", "truncate"]), st.integers(0, 60), st.binary(max_size=30))


@given(st.binary(max_size=40), st.lists(steps, max_size=20))
def test_pages_are_the_bytes_of_memory(original: bytes, changes: list[tuple[str, int, bytes]]) -> None:
    """Any writes, cuts and reads give the same bytes, and the parts in the end are exactly the file."""
    store, model = Store(), io.BytesIO(original)
    view = memoryview(original)
    pages = Pages(PAGE, MOST, lambda: store, lambda start, end: view[start:end], len(original))
    for action, place, data in changes:
        if action == "write" and data:
            model.seek(place)
            model.write(data)
            pages.write(place, memoryview(data))
        elif action == "truncate":
            model.truncate(place)
            pages.truncate(place)
        model.seek(place)
        assert pages.read(place, place + 12) == model.read(12)
        assert len(pages._memory) <= MOST
    parts = pages.store_all()
    content = model.getvalue()
    assert b"".join(store.parts[part.name] for part in parts) == content
    assert len(store.parts) == len(parts)
    assert pages.digest() == blake3(content).digest()

"""Random changes, crashes without a close and re-openings of the durable store against a dict.

Not for: kills in the middle of a change (``tests/integration/test_store_crash.py``).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dios import limits
from dios.core.events import ObjectRecord
from dios.errors import BadReferenceError, InvalidError
from dios.ids import ObjectId
from dios.store.environment import structure_problems
from dios.store.lmdb_store import LmdbStore
from dios.store.protocol import Change, Drop, ExtentContent, FilePayload, InlinePayload, Put
from tests.support.store.records import content, extent, record

NUMBERS = st.integers(0, 5)
SIZES = st.sampled_from(
    [0, 1, 5_000, limits.INLINE_VALUE_BYTES_MAX, limits.INLINE_VALUE_BYTES_MAX + 1, 100_000]
)
KINDS = st.sampled_from(["put", "file", "record", "drop"])


class StoreMachine(RuleBasedStateMachine):
    """The model is a dict from object number to record and content."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="dios-store-"))
        self.model: dict[int, tuple[ObjectRecord, bytes]] = {}
        self.version = 0
        self.pinned: list[tuple[ExtentContent, bytes]] = []
        self.store = LmdbStore(self.folder)
        self.store.recover()

    def _changes(self, wanted: list[tuple[str, int, int]], files: list[int]) -> list[Change]:
        changes: list[Change] = []
        for kind, number, size in wanted:
            self.version += 1
            if kind == "drop":
                changes.append(Drop(ObjectId(number)))
                self.model.pop(number, None)
                continue
            data = b"%09d" % self.version * (size // 9 + 1)
            data = data[:size] if kind != "record" else self.model.get(number, (None, b""))[1]
            new = record(number, size=len(data), v_w=self.version)
            if kind == "record":
                changes.append(Put(new))
            elif kind == "put":
                changes.append(Put(new, InlinePayload(data)))
            else:
                files.append(os.memfd_create("source", os.MFD_CLOEXEC))
                os.write(files[-1], data)
                changes.append(Put(new, FilePayload(files[-1], len(data))))
            self.model[number] = (new, data)
        return changes

    @rule(wanted=st.lists(st.tuples(KINDS, NUMBERS, SIZES), min_size=1, max_size=6))
    def apply(self, wanted: list[tuple[str, int, int]]) -> None:
        """Any batch of changes."""
        files: list[int] = []
        try:
            self.store.apply(self._changes(wanted, files))
        finally:
            for fd in files:
                os.close(fd)

    @rule(wanted=st.lists(st.tuples(KINDS, NUMBERS, SIZES), max_size=4), size=SIZES)
    def fail(self, wanted: list[tuple[str, int, int]], size: int) -> None:
        """A batch whose last source cannot be read changes nothing."""
        files: list[int] = []
        before = dict(self.model)
        try:
            changes = self._changes(wanted, files)
            try:
                self.store.apply([*changes, Put(record(0), FilePayload(1_000_000, size + 1))])
            except InvalidError:
                self.model = before
        finally:
            for fd in files:
                os.close(fd)

    @rule(number=NUMBERS)
    def pin(self, number: int) -> None:
        """Keep a large content open over whatever comes."""
        if len(self.model.get(number, (None, b""))[1]) > limits.INLINE_VALUE_BYTES_MAX:
            self.pinned.append((extent(self.store, number), self.model[number][1]))

    @rule()
    def reopen(self) -> None:
        """Close and open again."""
        self.store.close()
        assert structure_problems(self.folder) == []
        self.store = LmdbStore(self.folder)
        assert list(self.store.recover()) == [self.model[number][0] for number in sorted(self.model)]
        assert self.store.damaged == []

    @invariant()
    def same(self) -> None:
        """The store holds what the model holds, and the counts agree with the files."""
        for number in range(6):
            if number in self.model:
                assert content(self.store, number) == self.model[number][1]
                continue
            try:
                self.store.open_content(ObjectId(number))
            except BadReferenceError:
                continue
            raise AssertionError(f"object {number} should be gone")
        large = [d for _, d in self.model.values() if len(d) > limits.INLINE_VALUE_BYTES_MAX]
        assert self.store.usage() == {
            "objects": len(self.model),
            "bytes": sum(len(data) for _, data in self.model.values()),
            "extents": len(large),
        }
        assert sum(path.is_file() for path in (self.folder / "extents").glob("*/*")) == len(large)
        for pinned_content, expected in self.pinned:
            assert os.pread(pinned_content.fd, pinned_content.size + 1, 0) == expected

    def teardown(self) -> None:
        """Close everything and remove the folder."""
        for pinned_content, _ in self.pinned:
            os.close(pinned_content.fd)
        self.store.close()
        shutil.rmtree(self.folder)


StoreMachine.TestCase.settings = settings(
    max_examples=20, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
)
TestStoreMachine = StoreMachine.TestCase

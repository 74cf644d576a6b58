"""The records of one kind of a user, read and changed by the user's program in all copies that it reaches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Final, Generic, TypeVar

from dios import limits
from dios.client.sync.node import Node, Reference
from dios.errors import Busy, Conflict, DiosError, ExistsError, UnreachableError
from dios.lib.catalogue import StoredCatalogue
from dios.lib.closing import close_all
from dios.lib.decoding import decoded
from dios.lib.retrying import Pauses
from dios.lib.user_records.kind import RecordKind, S
from dios.wire.node_roles import NodeRight
from dios.wire.types import ObjectType, Persistence

R = TypeVar("R")


class UserRecords(Generic[S]):
    """The records of a user; ``node`` is a session of that user."""

    def __init__(self, node: Node, kind: RecordKind[S]) -> None:
        self._node: Final = node
        self._kind: Final = kind

    def read(self) -> S:
        """Return the records. Raise UnreachableError if there are some and none can be read."""
        return self._read(self._copies())

    def read_known(self) -> S:
        """Return the records. Those that nobody can read now are an error, and not none.

        Raise UnreachableError if there are some and none can be read, and if none was found and a node that
        may have some does not answer.
        """
        references = self._node.lookup(self._kind.special_name)
        copies = _durable(references)
        if not copies and references.incomplete:
            raise UnreachableError("the records are on a node that does not answer", call="lookup")
        return self._read(copies)

    def read_near(self) -> S:
        """Return the records as this node has them, which may miss the latest changes; else those of all."""
        near = _durable(self._node.lookup(self._kind.special_name, local_only=True))
        try:
            if near:
                return self._merged(near)
        except DiosError:
            pass  # it is written at this moment, or damaged
        finally:
            close_all(near)
        return self.read()

    def _read(self, copies: list[Reference]) -> S:
        """Return the records of copies, which may all be written at this moment, and close them."""
        pauses = Pauses(limits.CATALOGUE_EDIT_S)
        try:
            while True:
                try:
                    return self._merged(copies)
                except (Busy, Conflict) as conflict:
                    if pauses.is_over:
                        raise
                    pauses.wait(conflict)
        finally:
            close_all(copies)

    def _merged(self, copies: list[Reference]) -> S:
        return self._kind.merge(content for _, content, _ in self._contents(copies))

    def edit(self, change: Callable[[S], S]) -> None:
        """Change the records in every copy that can be reached; ``change`` may be called several times."""
        pauses = Pauses()
        for attempt in range(limits.CATALOGUE_EDITS_MAX):
            copies = self._copies()
            try:
                self._try_edit(copies, change)
            except (Busy, Conflict, ExistsError) as conflict:
                if attempt == limits.CATALOGUE_EDITS_MAX - 1:
                    raise
                if not isinstance(conflict, ExistsError):
                    pauses.wait(conflict)
            else:
                return
            finally:
                close_all(copies)

    def others(self, there: Collection[str]) -> list[str]:
        """Return the names of the nodes that answer and may hold copies, without those ``there``."""
        able = (member for member in self._node.nodes() if member.usable and member.may(NodeRight.KEEP))
        return [member.name for member in able if member.name not in there]

    def report(self, decode: Callable[[bytes], R], empty: R) -> R:
        """Return the report of the leading node, or the empty one if there is none that can be read."""
        references = self._node.lookup(self._kind.special_name)
        report = empty
        for reference in references:
            if reference.type is not ObjectType.DURABLE_BLOB:
                with suppress(DiosError):
                    report = decoded(decode, reference.read_bytes(), "the report cannot be read")
        close_all(references)
        return report

    def _copies(self) -> list[Reference]:
        return _durable(self._node.lookup(self._kind.special_name))

    def _try_edit(self, copies: list[Reference], change: Callable[[S], S]) -> None:
        read = self._contents(copies)
        data = self._kind.encode(change(self._kind.merge(content for _, content, _ in read)))
        if not read:
            copies.append(self._node.create(ObjectType.DURABLE_BLOB, data=data, flags=self._kind.flag))
        failures: list[DiosError] = []
        for reference, _, version in read:
            try:
                StoredCatalogue(reference).replace(data, version)
            except DiosError as error:
                # If another copy has the change, the leader unites them.
                if isinstance(error, Busy | Conflict) and reference is read[0][0]:
                    raise
                failures.append(error)
        if read and len(failures) == len(read):
            raise failures[0]
        there = {replica.node for replica in copies}
        for name in self.others(there):
            with suppress(DiosError):
                copies.append(copies[0].copy(persistence=Persistence.DURABLE, host=name))

    def _contents(self, copies: list[Reference]) -> list[tuple[Reference, S, int]]:
        """Return the copies that can be read. Raise UnreachableError if there are some and none can be."""
        contents: list[tuple[Reference, S, int]] = []
        failed: DiosError | None = None
        for reference in copies:
            try:
                data, version = StoredCatalogue(reference).read()
                contents.append((reference, self._kind.decode(data), version))
            except DiosError as error:
                failed = error
        if failed is not None and not contents:
            raise failed
        return contents


def _durable(references: Iterable[Reference]) -> list[Reference]:
    """Return the copies among the objects that were found, and close the others."""
    objects = list(references)
    close_all(reference for reference in objects if reference.type is not ObjectType.DURABLE_BLOB)
    return sorted(
        (reference for reference in objects if reference.type is ObjectType.DURABLE_BLOB),
        key=lambda reference: reference.node,
    )

"""The nodes that a node trusts: the nodes it knows, and the members' statements about removed nodes.

A chain of certificates is valid as long as no node in it was removed: everything that a removed node signed,
before or later, is void, its own statement included. So that the nodes which it had admitted stay, the
statement that removes it keeps those that its signer knew. Whatever else of the removed node shall stay
true, the member that removes it says again in its own name. No removal depends on a clock. TLS checks the
signatures of chains, ``dios.transport.identity.statements`` those of statements, which ``dios.host.peers``
sends.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import Meta, Struct

from dios import limits
from dios.errors import DamagedError, LimitError, NotPermittedError, ProtocolError
from dios.ids import NodeId
from dios.transport.identity import durable_files, statements
from dios.transport.identity.certificates import (
    CertificateDetails,
    CertificateRole,
    card_of,
    cards_of,
    key_of_pem,
)
from dios.transport.identity.statements import Digest, Id, Statement
from dios.wire.node_roles import NodeRight

_VERSION: Final = 2
_RETURNS_MAX: Final = 8
"""The number of times that a void statement may count again until this node accepts one that is new to it.

Without a bound, three members that remove each other in a circle would change every node's mind for ever.
"""


class Known(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A node, its key (SHA-256 of the public key), and the nodes in its chain, its admitter first."""

    node: Id
    name: Annotated[str, Meta(min_length=1, max_length=limits.NODE_NAME_BYTES_MAX)]
    key: Digest
    admitters: Annotated[tuple[Id, ...], Meta(max_length=limits.CHAIN_CERTIFICATES_MAX)] = ()


class _Statements(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: Annotated[int, Meta(ge=_VERSION, le=_VERSION)]
    statements: Annotated[
        tuple[Annotated[bytes, Meta(max_length=limits.STATEMENT_BYTES_MAX)], ...],
        Meta(max_length=limits.NODES_MAX),
    ]


class _FirstVersion(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The unsigned lists of earlier releases."""

    version: Annotated[int, Meta(ge=1, le=1)]
    revoked: Annotated[tuple[Id, ...], Meta(max_length=limits.NODES_REMOVED_BY_MEMBER_MAX)]
    kept: Annotated[tuple[tuple[Id, Digest], ...], Meta(max_length=limits.NODES_FORGOTTEN_MAX)]


class _Roster(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The known nodes in the order of their entry, and the nodes that were known and are removed."""

    version: Annotated[int, Meta(ge=1, le=_VERSION)]
    nodes: Annotated[tuple[Known, ...], Meta(max_length=limits.NODES_MAX)]
    former: Annotated[tuple[Known, ...], Meta(max_length=limits.NODES_FORGOTTEN_MAX)] = ()


_encode: Final = msgspec.msgpack.Encoder().encode
_statements: Final = msgspec.msgpack.Decoder(_Statements)
_first: Final = msgspec.msgpack.Decoder(_FirstVersion)
_roster: Final = msgspec.msgpack.Decoder(_Roster)
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, FileNotFoundError, ProtocolError)


class _Step(NamedTuple):
    """A node of a chain; ``key`` is None if it is not known."""

    node: int
    name: str
    key: bytes | None


def statements_of(data: Iterable[bytes]) -> bytes:
    """Return the content of the file of statements."""
    return _encode(_Statements(_VERSION, tuple(data)))


def roster_of(nodes: Iterable[Known], former: Iterable[Known] = ()) -> bytes:
    """Return the content of the file of known nodes."""
    return _encode(_Roster(_VERSION, tuple(sorted(nodes, key=lambda known: known.node)), tuple(former)))


class Trust:
    """The trust of one node, stored in the folder of its identity (files ``revoked`` and ``known``).

    The asynchronous methods write the files in a thread and return when they are written. ``note`` blocks
    meanwhile; a daemon calls ``record`` instead.
    """

    def __init__(self, folder: Path, chain: Sequence[bytes]) -> None:
        """Read the files; ``chain`` are the node's certificates. Raises DamagedError."""
        self._folder: Final = folder
        self._chain = tuple(chain)
        self._own = card_of(chain[0])
        self._watchers: Final[list[Callable[[], None]]] = []
        self._removers: dict[int, list[Statement]] = {}
        try:
            roster = _roster.decode((folder / "known").read_bytes())
            self._known: Final = {known.node: known for known in roster.nodes}
            self._former: Final = {known.node: known for known in roster.former}
            read = self._read((folder / "revoked").read_bytes())
        except _UNREADABLE as error:
            raise DamagedError(
                f"cannot read the lists of nodes in {folder}: {error}. Restore the files 'revoked' and "
                "'known' from a backup, or let the node join again with another data directory."
            ) from None
        self._statements: Final[dict[int, Statement]] = {
            statement.signer.number: statement for statement in read
        }
        self._accepted: Final = {statement.signer.number: (statement.order, 0) for statement in read}
        self._index()
        self._changing: Final = trio.Lock()
        """Held from the moment that a statement is examined until it is stored."""
        self.admitting: Final = trio.Lock()
        """Held by an admission from its first check until the new node is recorded."""
        self._writing: Final = trio.Lock()
        """Held while the known nodes are written, so that the newest list is written last."""

    def _read(self, data: bytes) -> tuple[Statement, ...]:
        """Return the stored statements in the order in which they were accepted."""
        try:
            first = _first.decode(data)
        except msgspec.ValidationError:
            stored = _statements.decode(data)
            return tuple(statements.read(signed, self._chain[-1]) for signed in stored.statements)
        if not first.revoked:
            return ()
        # Nothing says who made an old list: this node vouches for what it can vouch for.
        mine = {known.node: known.key for known in self._known.values()}
        kept = {node: key for node, key in first.kept if mine.get(node) == key}
        removed = dict.fromkeys((node for node in first.revoked if node != self._own.number), 0)
        return (self._sign(1, removed, kept),)

    def adopt(self, chain: Sequence[bytes]) -> None:
        """Use a renewed chain of this node from now on."""
        self._chain, self._own = tuple(chain), card_of(chain[0])

    # -- reading ------------------------------------------------------------------------------------
    @property
    def own(self) -> CertificateDetails:
        """This node's certificate."""
        return self._own

    @property
    def authority(self) -> bytes:
        """The certificate of the cluster's root."""
        return self._chain[-1]

    def signer(self) -> tuple[tuple[bytes, ...], Ed25519PrivateKey]:
        """Return this node's chain and its key, which is read from its file. Raises DamagedError, OSError."""
        return self._chain, key_of_pem((self._folder / "node.key").read_bytes())

    @property
    def revoked(self) -> frozenset[NodeId]:
        """Return the removed nodes; this node itself is among them if a member removed it."""
        return frozenset(NodeId(node) for node in self._removers)

    @property
    def known(self) -> Sequence[Known]:
        """Return the nodes that this node has met or admitted, without removed nodes. It is among them."""
        return tuple(self._known.values())

    def name_of(self, node: int) -> str:
        """Return the name of a present or former member, or the id of a node that was never known."""
        known = self._known.get(node) or self._former.get(node)
        return f"{node:x}" if known is None else known.name

    def is_member(self, node: NodeId, key: bytes) -> bool:
        """Return True if a node with this id and this key (its SHA-256) is known, and was not removed."""
        known = self._known.get(node)
        return known is not None and known.key == key and node not in self._removers

    def refusal(self, chain: Sequence[CertificateDetails]) -> str:
        """Return the reason why a peer with this chain is refused; empty if it is not."""
        peer = chain[0]
        known = self._known.get(peer.number)
        if peer.role is CertificateRole.NODE and known is not None and known.key != peer.key:
            return f"{peer.name} has another key than before, so it is not the node that was admitted"
        return self._why_refused(peer.name, [_step_of(card) for card in chain[:-1]])

    def _why_refused(self, name: str, path: Sequence[_Step]) -> str:
        """Check a path upwards from a node; each removed node above it must be one whose removal keeps it."""
        for place, step in enumerate(path):
            removers = self._removers.get(step.node)
            if removers is None:
                continue
            if not place:
                return f"{name} was revoked"
            # A node below the removed node cannot vouch for itself if another member decides.
            deciding = [remover for remover in removers if step.node not in _numbers(remover)] or removers
            if not any(_keeps(remover, path[:place]) for remover in deciding):
                return f"{name} was admitted by {step.name}, which was revoked. Join it again."
        return ""

    # -- known nodes --------------------------------------------------------------------------------
    def check_room(self, admitters: Sequence[int] | None = None) -> None:
        """Raise LimitError if there is no room for one more node below ``admitters``, else below this node.

        Some places stay free, so that no member fills the table with nodes that it admitted, directly or
        through others. Only the first node of the cluster may, because all nodes are below it.
        """
        if len(self._known) >= limits.NODES_MAX:
            raise LimitError(
                f"a cluster has at most {limits.NODES_MAX} nodes. `dios node forget` those that are gone."
            )
        above = tuple(card.number for card in cards_of(self._chain)[:-1]) if admitters is None else admitters
        for admitter in above[:-1]:
            count = sum(admitter in known.admitters for known in self._known.values())
            if count >= limits.NODES_MAX - limits.NODES_RESERVED:
                raise LimitError(
                    f"{self.name_of(admitter)} and the nodes below it have admitted {count} nodes, the "
                    "maximum "
                    "for one member. Admit at another member, or `dios node forget` nodes that are gone."
                )

    def note(self, node: Known) -> None:
        """Record a node durably. A node that is known under this id stays unchanged.

        Raises LimitError if there is no room for it.
        """
        if self._add(node):
            self._write_roster()

    async def record(self, node: Known) -> None:
        """Do what ``note`` does, and write in a thread."""
        if self._add(node):
            await self._write_roster_in_thread()

    def _add(self, node: Known) -> bool:
        """Add a node to the known ones; return False if nothing changes."""
        if node.node in self._known or node.node in self._removers:
            return False
        self.check_room(node.admitters)
        self._known[node.node] = node
        self._former.pop(node.node, None)
        return True

    def _write_roster(self) -> None:
        durable_files.write(self._folder / "known", roster_of(self._known.values(), self._former.values()))

    async def _write_roster_in_thread(self) -> None:
        async with self._writing:
            listed = roster_of(self._known.values(), self._former.values())
            await trio.to_thread.run_sync(durable_files.write, self._folder / "known", listed)

    # -- statements ---------------------------------------------------------------------------------
    @property
    def statements(self) -> tuple[bytes, ...]:
        """Return the statements that count, for ``accept`` at another node; this node's own comes first."""
        own = self._statements.get(self._own.number)
        rest = (statement.data for statement in self._statements.values() if statement is not own)
        return tuple(rest) if own is None else (own.data, *rest)

    @property
    def digest(self) -> bytes:
        """Return a digest of all statements, which is equal for equal ones."""
        return hashlib.sha256(b"".join(sorted(self.statements))).digest()

    async def remove(self, node: NodeId, *, restore: bool = False) -> bytes:
        """Refuse this node, and all unknown nodes that it admitted, from now on and durably.

        The statement of the removed node becomes void. This node confirms the removals in it as its own,
        unless ``restore`` is set: then the nodes that it removed are members again. Returns the new
        statement. Raises LimitError if this node removed NODES_REMOVED_BY_MEMBER_MAX nodes, NotPermittedError
        if its role does not let it, OSError.
        """
        if not self._own.may(NodeRight.REMOVE):
            raise NotPermittedError(f"{self._own.why_not(NodeRight.REMOVE)}. Ask one with --node.")
        async with self._changing:
            statement = self._removal(node, restore=restore)
            await self._store(statement)
        return statement.data

    def _removal(self, node: NodeId, *, restore: bool) -> Statement:
        """Return this node's next statement, which removes another node as well."""
        held, void = self._statements.get(self._own.number), self._statements.get(node)
        removed = {} if held is None else dict(held.removed)
        if restore:
            removed = {node_number: source for node_number, source in removed.items() if source != node}
        removed[int(node)] = 0
        if len(removed) > limits.NODES_REMOVED_BY_MEMBER_MAX:
            raise LimitError(
                f"this node removed {limits.NODES_REMOVED_BY_MEMBER_MAX} nodes, the maximum for one member. "
                "Ask another node with --node."
            )
        if void is not None and not restore:
            self._confirm(removed, void)
        kept = {} if held is None else dict(held.kept)
        kept.update((known.node, known.key) for known in self._known.values())
        kept = {
            node_number: key
            for node_number, key in kept.items()
            if node_number not in removed and node_number not in self._removers
        }
        number = 1 if held is None else held.number + 1
        return self._sign(number, removed, dict(list(kept.items())[-limits.NODES_MAX + 1 :]))

    def _confirm(self, removed: dict[int, int], void: Statement) -> None:
        """Confirm the removals that a removed node had made, beginning with nodes that were known here.

        Ids that nobody knows here may be made up, so they take at most half of the room.
        """
        wanted = [number for number in void.removed if number != self._own.number and number not in removed]
        room = limits.NODES_REMOVED_BY_MEMBER_MAX - len(removed)
        known = [number for number in wanted if number in self._former or number in self._known][:room]
        unknown = [number for number in wanted if number not in known][: (room - len(known)) // 2]
        removed.update(dict.fromkeys((*known, *unknown), void.signer.number))

    def _sign(self, number: int, removed: Mapping[int, int], kept: Mapping[int, bytes]) -> Statement:
        chain, key = self.signer()
        return statements.make(chain, key, number, removed, {**kept, self._own.number: self._own.key})

    async def accept(self, data: bytes, admit: Callable[[Statement], bool] = lambda _: True) -> bool:
        """Accept a member's statement, from whatever node; return True if it changed anything.

        A statement of a removed node, or of one below it that is not kept, is void and changes nothing.
        A statement that would change something is accepted only if ``admit`` returns True for it.
        Raises ProtocolError if no member can have made it, OSError if it cannot be stored.
        """
        async with self._changing:
            statement = self._examined(data)
            if statement is None:
                return False
            try:
                if self._add_signer(statement):
                    await self._write_roster_in_thread()
            except LimitError:
                return False
            if not admit(statement):
                return False
            await self._store(statement)
        return True

    def _examined(self, data: bytes) -> Statement | None:
        """Return a statement that would change something, or None."""
        if any(known.data == data for known in self._statements.values()):
            return None
        statement = statements.read(data, self._chain[-1])
        signer = statement.signer
        held = self._statements.get(signer.number)
        if held is not None and held.order >= statement.order:
            return None
        if signer.number == self._own.number:
            # This node was restored from a backup: the statement is its own all the same.
            return statement if signer.key == self._own.key else None
        return None if self._is_unwanted(statement) else statement

    def _add_signer(self, statement: Statement) -> bool:
        """Add the signer to the known nodes; return False if nothing changes. Raises LimitError."""
        signer = statement.signer
        if signer.number == self._own.number:
            return False
        return self._add(Known(signer.number, signer.name, signer.key, _numbers(statement)[1:]))

    async def _store(self, statement: Statement) -> None:
        """Store a statement, which counts as soon as it is stored."""
        after = self._statements_with(statement)
        listed = statements_of(kept.data for kept in after.values())
        await trio.to_thread.run_sync(durable_files.write, self._folder / "revoked", listed)
        if self._apply(statement, after):
            await self._write_roster_in_thread()

    def _statements_with(self, statement: Statement) -> dict[int, Statement]:
        """Return the statements that count once another is accepted; nothing changes yet."""
        before = dict(self._statements)
        self._statements.pop(statement.signer.number, None)
        self._statements[statement.signer.number] = statement
        self._index()
        while void := [candidate for candidate in self._statements.values() if self._is_void(candidate)]:
            for voided in void:
                del self._statements[voided.signer.number]
            self._index()
        after = dict(self._statements)
        self._replace(before)
        return after

    def _replace(self, held: Mapping[int, Statement]) -> None:
        self._statements.clear()
        self._statements.update(held)
        self._index()

    def _apply(self, statement: Statement, after: Mapping[int, Statement]) -> bool:
        """Let a stored statement count; return True if known nodes are gone by it."""
        self._replace(after)
        self._note_accepted(statement)
        gone = [known for known in self._known.values() if self._is_gone(known)]
        for known in gone:
            del self._known[known.node]
            self._former[known.node] = known
        while len(self._former) > limits.NODES_FORGOTTEN_MAX:
            del self._former[next(iter(self._former))]
        for notify in tuple(self._watchers):
            notify()
        return bool(gone)

    def _is_unwanted(self, statement: Statement) -> bool:
        if self.refusal(statement.chain):
            return True
        order, returns = self._accepted.get(statement.signer.number, (statement.order, 0))
        return statement.order <= order and returns >= _RETURNS_MAX

    def _note_accepted(self, statement: Statement) -> None:
        """Count how often a statement is accepted again; one that is new resets all counts."""
        accepted, signer = self._accepted, statement.signer.number
        order, returns = accepted.pop(signer, (None, 0))
        if order is None or statement.order > order:
            accepted.update({number: (former, 0) for number, (former, _) in accepted.items()})
            order, returns = statement.order, 0
        accepted[signer] = order, returns + 1
        while len(accepted) > limits.NODES_FORGOTTEN_MAX:
            del accepted[next(iter(accepted))]

    def _is_void(self, statement: Statement) -> bool:
        return statement.signer.number != self._own.number and bool(self.refusal(statement.chain))

    def _is_gone(self, known: Known) -> bool:
        if known.node == self._own.number:
            return False
        above = [_Step(number, "", None) for number in known.admitters]
        return bool(self._why_refused(known.name, [_Step(known.node, known.name, known.key), *above]))

    def _index(self) -> None:
        self._removers = {}
        for statement in self._statements.values():
            for node in statement.removed:
                self._removers.setdefault(node, []).append(statement)

    def watch(self, notify: Callable[[], None]) -> Callable[[], None]:
        """Call ``notify`` after each change of the statements; call the returned function to end that."""
        self._watchers.append(notify)
        return lambda: self._watchers.remove(notify) if notify in self._watchers else None


def _step_of(card: CertificateDetails) -> _Step:
    # The number of a token is no node's.
    return _Step(card.number if card.role is CertificateRole.NODE else 0, card.name, card.key)


def _numbers(statement: Statement) -> tuple[int, ...]:
    """Return the signer of a statement and the nodes above it."""
    return tuple(card.number for card in statement.chain[:-1])


def _keeps(statement: Statement, below: Sequence[_Step]) -> bool:
    keys: Iterator[tuple[bytes | None, bytes | None]] = (
        (statement.kept.get(step.node), step.key) for step in below
    )
    return any(kept is not None and key in {None, kept} for kept, key in keys)

"""Keeps the documents that all nodes share: the register of principals, and the generations of the secret.

Nodes send each other the documents that they have. One that cannot be stored is stored again later. A
register counts meanwhile, because it may remove a key. A generation does not, because nothing may be sealed
with a secret that a power cut could take away. Only authorities make generations, each at a bounded rate.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final, Protocol, TypeAlias

import trio

from dios import limits
from dios.core.events import RegisterStored, SecretsStored
from dios.errors import DiosError, NotPermittedError, WouldBlockError
from dios.host.loop.clock import Clock
from dios.host.loop.driver import Driver
from dios.host.peers.handshake import jittered_s
from dios.host.peers.link import PeerSession
from dios.host.peers.mandates import RegisterStore
from dios.host.peers.statements import SignerAllowances
from dios.ids import NodeId, Principal, TaskId
from dios.wire.codec import GENERATIONS_VERSION, MANDATES_VERSION
from dios.wire.dcp_frames import LaterSecrets, Principals
from dios.wire.mandates import Register

_log: Final = logging.getLogger(__name__)
_Call: TypeAlias = tuple[TaskId, int, int]


class SecretStore(Protocol):
    """The later secrets of the cluster; ``dios.transport.identity.generations`` implements it."""

    @property
    def document(self) -> bytes:
        """The document for other nodes, empty before the first one."""

    @property
    def secrets(self) -> tuple[bytes, ...]:
        """The later secrets, the present one last."""

    @property
    def mark(self) -> int:
        """A number that is equal on all nodes with this document, 0 without one."""

    @property
    def withheld(self) -> frozenset[NodeId]:
        """The nodes that must not get the document."""

    @property
    def may_make(self) -> bool:
        """True if this node is an authority, which makes generations."""

    @property
    def is_due(self) -> bool:
        """True if a further generation is needed, and this node may make it."""

    @property
    def is_exact(self) -> bool:
        """True if the document is withheld from the removed nodes, and from no other."""

    def may_have(self, node: NodeId) -> bool:
        """Return True if the document may be sent to this node."""
        ...

    async def accept(self, data: bytes, admit: Callable[[int], bool]) -> bool:
        """Store a document; return True if it has something new. Raise ProtocolError, OSError.

        Raise WouldBlockError if it would be stored, and ``admit`` returns False for its signer.
        """
        ...

    async def rotate(self, *, exactly: bool) -> None:
        """Make and store the next generation. Raise NotPermittedError, LimitError, DamagedError, OSError."""


class SharedDocuments:
    """The documents of one node, and their exchange with others.

    ``sessions`` returns the connected nodes; ``denied`` records a node whose register is not its cluster's.
    """

    def __init__(
        self,
        own: NodeId,
        register: RegisterStore,
        secrets: SecretStore,
        driver: Driver,
        clock: Clock,
        nursery: trio.Nursery,
        sessions: Callable[[], Iterable[tuple[NodeId, PeerSession]]],
        denied: Callable[[NodeId, DiosError], None],
    ) -> None:
        self._own: Final = own
        self._register: Final = register
        self._secrets: Final = secrets
        self._driver: Final = driver
        self._clock: Final = clock
        self._nursery: Final = nursery
        self._sessions: Final = sessions
        self._denied: Final = denied
        self._allowances: Final = SignerAllowances()
        self._versions: Final[dict[NodeId, tuple[int, str]]] = {}
        """The highest version that each node has spoken, and its name: also of one that rests."""
        self._saves_register = False
        self._has_duty = False
        self._last_failure = ""
        self._unsaved: bytes = b""
        """The newest document of generations that could not be stored."""

    def report(self) -> None:
        """Report the stored documents to the core at the start of the node."""
        if self._register.present is not None:
            self._driver.feed(self._registered(self._register.present))
        if self._secrets.document:
            self._driver.feed(self._stored())
        self.look()

    def send_to(self, node: NodeId, session: PeerSession) -> None:
        """Send the documents to a node that has connected."""
        known, _ = self._versions.get(node, (0, ""))
        self._versions[node] = max(known, session.version), session.line.peer.name
        self._send_register(session)
        self._send_secrets(node, session)
        self.look()

    # -- the register of principals -------------------------------------------------------------------
    async def store_register(self, data: bytes, call: _Call) -> None:
        """Store and pass on a register at an administrator's request, and report it to the core."""
        failure, register = "", None
        try:
            register = self._register.accept(data)
            if register is None:
                failure = "the register has changed meanwhile. Give the command again."
            else:
                failure = await self._register_failure()
        except DiosError as error:
            failure = error.message
        if failure:
            failure = f"cannot enrol principals: {failure}"
        if register is None:
            self._driver.post(RegisterStored(self._clock.now(), b"", (), call, failure))
        else:
            self._use_register(register, None, call, failure)

    async def receive_register(self, source: NodeId, data: bytes) -> bool:
        """Use the register that a node has sent, and pass it on. Return False for a known register.

        Raise ProtocolError if nobody has made it.
        """
        if self._register.is_known(data):
            return False
        try:
            register = self._register.accept(data)
        except NotPermittedError as error:
            self._denied(source, error)
            return True
        if register is not None:
            self._use_register(register, source)
            await self._register_failure()
        return True

    async def _register_failure(self) -> str:
        """Store the register that counts; return the reason if that failed, and store it again later."""
        try:
            await self._register.save()
        except OSError as error:
            _log.warning("cannot store the register of principals now", extra={"why": str(error)})
            if not self._saves_register:
                self._saves_register = True
                self._nursery.start_soon(self._save_register, name="store the register again")
            return (
                f"the register counts, but this node cannot store it ({error.strerror}), and tries again. "
                "Free some space: after a restart it would have the former one."
            )
        return ""

    async def _save_register(self) -> None:
        while True:
            await trio.sleep(jittered_s(limits.STORE_AGAIN_MS))
            try:
                await self._register.save()
            except OSError:
                continue
            break
        self._saves_register = False
        _log.info("the register of principals is stored")

    def _use_register(
        self, register: Register, source: NodeId | None, call: _Call | None = None, failure: str = ""
    ) -> None:
        for node, session in self._sessions():
            if node != source:
                self._send_register(session)
        self._driver.post(self._registered(register, call, failure))

    def _send_register(self, session: PeerSession) -> None:
        register = self._register.present
        if register is not None and session.version >= MANDATES_VERSION:
            session.send_message(Principals(register.data))

    def _registered(self, register: Register, call: _Call | None = None, failure: str = "") -> RegisterStored:
        keys = tuple((Principal(principal), key) for principal, key in register.keys.items())
        return RegisterStored(self._clock.now(), register.data, keys, call, failure)

    # -- the generations of the secret ----------------------------------------------------------------
    async def rotate(self, call: _Call) -> None:
        """Make the next generation at an operator's request, and report it to the core."""
        failure = await self._rotate(exactly=True)
        if failure:
            failure = f"cannot change the cluster's secret: {failure}"
            self._driver.post(SecretsStored(self._clock.now(), (), 0, (), call, failure))
        else:
            self._driver.post(self._stored(call))

    async def removed(self) -> None:
        """Make the next generation at once, after this node has removed another one, or restored some.

        If it is no authority, one of those makes it that the statement reaches.
        """
        if self._secrets.may_make and not self._secrets.is_exact:
            self._note_failure(await self._rotate(exactly=True))
        self.look()

    def _note_failure(self, failure: str) -> None:
        """Log why a generation could not be made, each reason once, or report the generation to the core."""
        if not failure:
            self._driver.post(self._stored())
        elif failure != self._last_failure:
            _log.warning("cannot change the cluster's secret now", extra={"why": failure})
        self._last_failure = failure

    def look(self) -> None:
        """Begin to make a generation that is due, after a time in which another node may make it.

        So one is made also if the node that has removed another one crashes in between, or is no authority.
        """
        if self._secrets.is_due and not self._has_duty:
            self._has_duty = True
            self._nursery.start_soon(self._do_duty, name="change the cluster's secret")

    async def _do_duty(self) -> None:
        try:
            while True:
                await trio.sleep(self._turn_s())
                if not self._secrets.is_due:
                    return
                self._note_failure(await self._rotate(exactly=False))
        finally:
            self._has_duty = False

    def _turn_s(self) -> float:
        """Return the seconds until this node's turn: the nodes with lower ids come first.

        Many that began at once would each make one.
        """
        before = sum(node < self._own for node, _ in self._sessions())
        return jittered_s(limits.GENERATION_DUTY_MS) * (1 + min(before, limits.GENERATION_TURNS_MAX))

    async def _rotate(self, *, exactly: bool) -> str:
        """Make, store and pass on the next generation; return the reason if that failed.

        Nodes of earlier releases cannot check what a later secret has sealed, so none is made before they are
        updated.
        """
        former = [
            name
            for node, (version, name) in self._versions.items()
            if version < GENERATIONS_VERSION and self._secrets.may_have(node)
        ]
        if former:
            return f"{', '.join(former)} cannot check later secrets. Update their release, or remove them."
        try:
            await self._secrets.rotate(exactly=exactly)
        except DiosError as error:
            return error.message
        except OSError as error:
            return f"it cannot be stored ({error.strerror}). Free some space, then try again."
        self._pass_on(None)
        return ""

    async def receive_secrets(self, source: NodeId, data: bytes) -> bool:
        """Store the generations that a node has sent, and pass them on. Return False for known ones.

        Any node may send them. Raise ProtocolError if no authority has signed them.
        """
        former = self._secrets.document
        if data == former:
            return False
        try:
            is_new = await self._secrets.accept(data, self._admit)
        except (WouldBlockError, OSError) as error:
            _log.warning("cannot store a generation of the cluster's secret", extra={"why": str(error)})
            waits = bool(self._unsaved)
            self._unsaved = data
            if not waits:
                self._nursery.start_soon(self._store_secrets, name="store a generation again")
            return True
        if is_new:
            self._use_secrets(source, former)
        return True

    def _admit(self, signer: int) -> bool:
        return self._allowances.take(signer, self._clock.now())

    async def _store_secrets(self) -> None:
        while self._unsaved:
            await trio.sleep(jittered_s(limits.STORE_AGAIN_MS))
            data, former = self._unsaved, self._secrets.document
            try:
                is_new = await self._secrets.accept(data, self._admit)
            except (WouldBlockError, OSError):
                continue
            if self._unsaved == data:
                self._unsaved = b""
            if is_new:
                self._use_secrets(None, former)

    def _use_secrets(self, source: NodeId | None, former: bytes) -> None:
        """Report the secrets to the core, and pass the document on if it is another than before."""
        if self._secrets.document != former:
            self._pass_on(source)
        self._driver.post(self._stored())
        self.look()

    def _pass_on(self, source: NodeId | None) -> None:
        for node, session in self._sessions():
            if node != source:
                self._send_secrets(node, session)

    def _send_secrets(self, node: NodeId, session: PeerSession) -> None:
        document = self._secrets.document
        if document and session.version >= GENERATIONS_VERSION and self._secrets.may_have(node):
            session.send_message(LaterSecrets(document))

    def _stored(self, call: _Call | None = None) -> SecretsStored:
        secrets = self._secrets
        withheld = tuple(sorted(secrets.withheld))
        return SecretsStored(self._clock.now(), secrets.secrets, secrets.mark, withheld, call)

"""Keeps this node's certificate young: asks nodes that sign for the next one at half of its life.

``dios.transport.identity.renewal`` has the conversation. A node that signs is sought until one answers: that
none does is a state, which ``dios doctor`` and ``dios-node status`` read from a file, and no failure.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec
import trio
from msgspec import Meta, Struct

from dios import limits
from dios.errors import DiosError
from dios.host.peers.handshake import jittered_s
from dios.transport.identity import durable_files, identity, renewal
from dios.transport.identity.certificates import card_of, utc_text
from dios.transport.identity.identity import FOLDER, Identity
from dios.trusted_files import require_trusted

_log: Final = logging.getLogger(__name__)
_FILE: Final = "renewal"
_DAY_S: Final = 86_400


class RenewalRecord(Struct, frozen=True, array_like=True):
    """The last attempts to renew: the time of the first one that failed, and the reasons; else the signer."""

    failing_since_s: Annotated[int, Meta(ge=0, le=2**53)]
    reason: Annotated[str, Meta(max_length=limits.TEXT_BYTES_MAX)]
    signer: Annotated[str, Meta(max_length=limits.NODE_NAME_BYTES_MAX)] = ""


_decode: Final = msgspec.msgpack.Decoder(RenewalRecord).decode


class CertificateState(NamedTuple):
    """The life of a node's certificate as a person reads it; ``advice`` is empty if nothing is to be done."""

    text: str
    advice: str


def state_of(own: Identity, now_s: float | None = None) -> CertificateState:
    """Return the state of a node's certificate. ``now_s`` is this machine's clock, seconds since 1970."""
    now_s = time.time() if now_s is None else now_s
    card = own.card
    if card.until_s is None or card.renewal_s is None:
        return CertificateState("without an end", "")
    left = (card.until_s - now_s) / _DAY_S
    record = _record_of(own.folder)
    signer = f", signed again by {record.signer}" if record is not None and record.signer else ""
    if left < 0:
        text = f"ended at {utc_text(card.until_s)} by this machine's clock: other nodes refuse this node"
    else:
        text = f"for {left:.1f} more days, until {utc_text(card.until_s)}{signer}"
    if now_s < card.renewal_s:
        return CertificateState(text, "")
    if record is not None and record.reason:
        return CertificateState(
            f"{text}; not renewed since {utc_text(record.failing_since_s)}: {record.reason}",
            "start an authority of the cluster (`dios node ls` shows which nodes are), and compare the "
            "clocks; if no authority will come back: `dios-node authorize --help`",
        )
    return CertificateState(f"{text}; it is due for renewal", "let the node run: it renews by itself")


def _record_of(folder: Path) -> RenewalRecord | None:
    path = folder / _FILE
    try:
        require_trusted(path, "the record of renewals")
        return _decode(path.read_bytes())
    except (OSError, DiosError, msgspec.MsgspecError, UnicodeDecodeError):
        return None  # the certificate itself says all that matters


class Address(NamedTuple):
    """A node and the address at which it listens."""

    node: int
    address: str


class CertificateKeeper:
    """The present identity of this node, and those that use it: each of ``watch`` is called with the next."""

    def __init__(self, own: Identity) -> None:
        self._own = own
        self._watchers: Final[list[Callable[[Identity], None]]] = []
        self._failing_since_s = 0

    @property
    def own(self) -> Identity:
        """The identity with the newest certificate."""
        return self._own

    def watch(self, adopt: Callable[[Identity], None]) -> None:
        """Call ``adopt`` with the identity after each renewal."""
        self._watchers.append(adopt)

    def days_left(self) -> float | None:
        """Return the days until the certificate ends, negative after that; None for no end."""
        until_s = self._own.card.until_s
        return None if until_s is None else (until_s - time.time()) / _DAY_S

    async def keep(self, known: Callable[[], Sequence[Address]]) -> None:
        """Renew in time, until cancelled. ``known`` returns the nodes that this one knows.

        Clocks may be set at any time, so a long pause is divided.
        """
        wait_ms = limits.RENEWAL_RETRY_MS_MIN
        while True:
            due_s = self._own.card.renewal_s
            if due_s is None:
                return
            pause_s = due_s - time.time()
            if pause_s > 0:
                await trio.sleep(min(pause_s, limits.RENEWAL_LOOK_MS_MAX / 1000))
            elif await self.renew(known()):
                wait_ms = limits.RENEWAL_RETRY_MS_MIN
            else:
                await trio.sleep(jittered_s(wait_ms))
                wait_ms = min(2 * wait_ms, limits.RENEWAL_RETRY_MS_MAX)

    async def renew(self, known: Iterable[Address]) -> bool:
        """Ask the nodes that may sign, until one has; return True if the next certificate is in use."""
        reasons: list[str] = []
        for address in self._asked(known):
            try:
                following = await renewal.ask(address, self._own)
                self._adopt(identity.adopt(self._own, following.chain))
                self._note(RenewalRecord(0, "", following.signer))
            except (DiosError, OSError) as error:
                reasons.append(str(error))
                continue
            skew_s = following.clock_s - time.time()
            if abs(skew_s) > limits.CERTIFICATE_SKEW_S:
                _log.warning(
                    "the clocks of this node and of the one that signed its certificate differ",
                    extra={"peer": following.signer, "seconds": round(skew_s)},
                )
            _log.info("the certificate was renewed", extra={"peer": following.signer})
            self._failing_since_s = 0
            return True
        why = "; ".join(dict.fromkeys(reasons)) or "no other node is known"
        if not self._failing_since_s:
            self._failing_since_s = int(time.time())
            _log.warning("no node renews the certificate now; this is tried again", extra={"why": why})
        self._note(RenewalRecord(self._failing_since_s, why[: limits.TEXT_BYTES_MAX // 4]))
        return False

    def _adopt(self, own: Identity) -> None:
        self._own = own
        for adopt in tuple(self._watchers):
            adopt(own)

    def _asked(self, known: Iterable[Address]) -> list[str]:
        """Return addresses to ask: of the last signer, of others that have signed, and of some others."""
        signers = [card_of(certificate).number for certificate in self._own.chain[1:-1]]
        signed = {admitter for member in self._own.trust.known for admitter in member.admitters}
        others = list(known)
        random.shuffle(others)
        others.sort(key=lambda other: (other.node not in signers, other.node not in signed))
        chosen = dict.fromkeys(other.address for other in others if other.node != self._own.node)
        return list(chosen)[: limits.RENEWALS_TRIED_MAX]

    def _note(self, record: RenewalRecord) -> None:
        try:
            durable_files.write(self._own.folder / _FILE, msgspec.msgpack.encode(record))
        except OSError as error:
            _log.warning("the state of the certificate cannot be stored", extra={"why": str(error)})


def own_certificate(data: Path) -> CertificateState | None:
    """Return the state of the certificate of the node in ``data``; None without a cluster.

    Raise DiosError or OSError if the identity cannot be read.
    """
    if not (data / FOLDER).exists():
        return None
    own = identity.load(data)
    return None if own is None else state_of(own)

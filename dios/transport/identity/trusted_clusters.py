"""The foreign clusters that this node trusts at its border: the root certificates (ADR 0101).

Each is a file in the folder ``trusted`` of the node's identity, by the name that its operator chose. A
running node looks at the files at each use, so that it obeys a change at once. Without a file nothing is
trusted.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import msgspec

from dios import limits
from dios.errors import DamagedError, ExistsError, InvalidError, LimitError
from dios.transport.identity import durable_files
from dios.transport.identity.certificates import (
    CertificateRole,
    card_of,
    chain_of_pem,
    check_name,
    check_signatures,
    pem_of,
)
from dios.transport.identity.identity import Identity
from dios.trusted_files import require_trusted

_FOLDER: Final = "trusted"
_ENDING: Final = ".json"


@dataclass(frozen=True, slots=True)
class TrustedCluster:
    """A foreign cluster: the name here, its root's certificate (DER), and the address of its border.

    Without an address its users redeem tokens of this cluster, and this node redeems none of theirs.
    """

    name: str
    authority: bytes
    address: str

    @property
    def cluster(self) -> bytes:
        """The SHA-256 of the root's certificate, which identifies the cluster."""
        return hashlib.sha256(self.authority).digest()


class _Stored(msgspec.Struct, forbid_unknown_fields=True):
    authority: Annotated[str, msgspec.Meta(max_length=16_384)]
    address: Annotated[str, msgspec.Meta(max_length=limits.NODE_ADDRESS_CHARS_MAX)] = ""


_decode: Final = msgspec.json.Decoder(_Stored).decode


def trusted_clusters(own: Identity) -> Mapping[bytes, TrustedCluster]:
    """Return the trusted clusters by their digests. Raise DamagedError if a file cannot be read."""
    folder = own.folder / _FOLDER
    try:
        paths = sorted(path for path in folder.iterdir() if path.name.endswith(_ENDING))
    except FileNotFoundError:
        return {}
    require_trusted(folder, "the folder of trusted clusters")
    clusters = {}
    for path in paths[: limits.TRUSTED_CLUSTERS_MAX]:
        require_trusted(path, "a trusted cluster")
        try:
            stored = _decode(path.read_bytes())
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise DamagedError(
                f"{path} cannot be read: {error}. Remove it, and add the cluster again."
            ) from None
        cluster = TrustedCluster(
            path.name.removesuffix(_ENDING), _authority_of(stored.authority.encode()), stored.address
        )
        clusters[cluster.cluster] = cluster
    return clusters


class TrustedFolder:
    """The trusted clusters of a running node, read again when a file was changed, added or removed."""

    def __init__(self, own: Identity) -> None:
        self._own: Final = own
        self._state: tuple[tuple[int, ...], ...] | None = None
        self._clusters: Mapping[bytes, TrustedCluster] = {}

    def clusters(self) -> Mapping[bytes, TrustedCluster]:
        """Return the present trusted clusters, the same mapping until they change. Raise DamagedError."""
        state = self._look()
        if state != self._state:
            self._clusters, self._state = trusted_clusters(self._own), state
        return self._clusters

    def _look(self) -> tuple[tuple[int, ...], ...]:
        """Return a description of the folder and its files that any change of them changes."""
        folder = self._own.folder / _FOLDER
        try:
            with os.scandir(folder) as entries:
                stats = [folder.stat(), *(entry.stat(follow_symlinks=False) for entry in entries)]
        except FileNotFoundError:
            return ()
        return tuple(
            (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns) for status in stats
        )


def add_trusted(own: Identity, name: str, authority: bytes, address: str) -> TrustedCluster:
    """Trust the cluster with this root (PEM) at the border; return it.

    Raise InvalidError for an invalid name, for a certificate that is not a root's, and for this node's
    own cluster, ExistsError if the cluster or the name is there already, LimitError if there are too many.
    """
    check_name(name)
    cluster = TrustedCluster(name, _authority_of(authority), address)
    if cluster.cluster == own.cluster:
        raise InvalidError(
            "this is the root of the node's own cluster. Copy the file identity/authority.pem of a node "
            "of the other cluster."
        )
    known = trusted_clusters(own)
    same = next(
        (other for other in known.values() if other.name == name or other.cluster == cluster.cluster), None
    )
    if same is not None:
        raise ExistsError(f"this cluster is trusted as {same.name} already. Remove {same.name} first.")
    if len(known) >= limits.TRUSTED_CLUSTERS_MAX:
        raise LimitError(f"{len(known)} clusters are trusted already, which is the maximum")
    folder = own.folder / _FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    stored = _Stored(pem_of((cluster.authority,)).decode(), address)
    durable_files.write(folder / f"{name}{_ENDING}", msgspec.json.encode(stored))
    return cluster


def remove_trusted(own: Identity, name: str) -> None:
    """Trust the cluster with this name no longer. Raise InvalidError if there is none."""
    path: Path = own.folder / _FOLDER / f"{check_name(name)}{_ENDING}"
    try:
        path.unlink()
    except FileNotFoundError:
        raise InvalidError(f"no cluster {name!r} is trusted. `dios-node trust ls` lists them.") from None


def cluster_of_authority(authority: bytes) -> bytes:
    """Return the digest of the cluster with this root (PEM). Raise InvalidError for other files."""
    return hashlib.sha256(_authority_of(authority)).digest()


def _authority_of(text: bytes) -> bytes:
    """Return the only certificate of a PEM text, which must be that of a root."""
    chain = chain_of_pem(text)
    if len(chain) != 1 or card_of(chain[0]).role is not CertificateRole.ROOT:
        raise InvalidError(
            "the certificate is not that of a root. Copy the file identity/authority.pem of a node of "
            "the other cluster."
        )
    check_signatures(chain)
    return chain[0]

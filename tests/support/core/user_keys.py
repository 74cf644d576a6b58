"""Users with keys in a cluster of cores: who is enrolled, and which node has a mandate of whom."""

from __future__ import annotations

from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dios import limits
from dios.ids import Principal
from dios.wire import messages
from dios.wire.mandates import EVERY_PURPOSE, MandateTerms, Purpose, make_mandate, make_register, public_bytes
from tests.support.core.cluster import AUTHORITY, MS, Citizen, Cluster, ClusterNode, key_digest_of

ALICE = Principal("uid:2000")
BOB = Principal("uid:3000")


def key_of(principal: str) -> Ed25519PrivateKey:
    """The key of a user, or of the administrator."""
    return Ed25519PrivateKey.from_private_bytes(blake3(principal.encode()).digest())


ADMINISTRATOR = key_of("administrator")


def enrol(cluster: Cluster, *principals: Principal, number: int = 1) -> None:
    """Enrol exactly these principals, with their keys, on every node."""
    keys: dict[str, tuple[bytes, ...]] = {
        principal: (public_bytes(key_of(principal)),) for principal in principals
    }
    register = make_register(ADMINISTRATOR, AUTHORITY, number, keys)
    cluster.session(cluster.nodes[0]).ask(messages.Done, messages.Enrol(register.data))
    cluster.settle()


def mandate_for(
    node: ClusterNode,
    principal: Principal,
    *,
    purposes: Purpose = EVERY_PURPOSE,
    lasts_ms: int = limits.MANDATE_MS,
    key: Ed25519PrivateKey | None = None,
) -> bytes:
    """A mandate of a user for a node, from now on by the node's clock."""
    key = key or key_of(principal)
    now_ms = node.now // MS
    terms = MandateTerms(
        node.node, key_digest_of(node.node), AUTHORITY, principal, (public_bytes(key),), now_ms
    )
    return make_mandate(key, terms, purposes, now_ms, now_ms + lasts_ms)


def vouched(
    node: ClusterNode, principal: Principal, groups: tuple[bytes, ...] = (), lasts_ms: int = limits.MANDATE_MS
) -> Citizen:
    """A session of a user whose program has given the node a mandate."""
    session = node.session(principal, groups)
    session.ask(messages.Done, messages.Vouch(mandate_for(node, principal, lasts_ms=lasts_ms)))
    return session

"""Mandates and registers: what they leave, what is refused, and their frozen bytes."""

from __future__ import annotations

import contextlib

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dios import limits
from dios.errors import ProtocolError
from dios.transport.identity import certificates
from dios.wire.mandates import (
    EVERY_PURPOSE,
    FOR_CHILDREN,
    MandateTerms,
    Purpose,
    extend,
    key_digest,
    make_mandate,
    make_register,
    public_bytes,
    read_mandate,
    read_register,
    stated_mandate,
)

USER, HOME, SECOND, THIRD = (Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in range(1, 5))
CLUSTER = b"c" * 32
TERMS = MandateTerms(7, key_digest(public_bytes(HOME)), CLUSTER, "uid:1000", (public_bytes(USER),), 5_000)
FROZEN_MANDATE = (
    "9292c4799901c4206363636363636363636363636363636363636363636363636363636363636363a87569643a313030"
    "30c4208a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c07c42047dea58ea00fae9417ee"
    "19d76755bfef690899021132effb04fe1f9e4f0c80591fcd1388cd2328c440327f47314894056b8140233c0e4d045ea4"
    "158e92a60d97e51d26edd6abb893d5e852e67a3e976c37fea435da124cf41076b8d7fa49cbd0b17c50dbb0b51b1a0291"
    "92c44a95c4208139770ea87d175f56a35466c34c7ecccb8d8a91b4ee37a25df60f5b8fc9b39408c4208cef065b7af836"
    "69150b7d32704d3d3e75c3e9aee0d4f6740544c68e81b377aa07cd1f40c4401753f1cf5cdbba9324e5d3e11ffd4efb28"
    "a8fe084b20b380815e7700a13baa3e459addc9340679152c14ed040a7cb1d5bee775f1b37a13a7be896d2dd8f31c01"
)
FROZEN_REGISTER = (
    "93c4539401c4206363636363636363636363636363636363636363636363636363636363636363039192a87569643a31"
    "30303091c4206b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6bc4208a88e3dd7409f195"
    "fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5cc4403db29f6fff00f057b15477bad61ce019987b669cd74b"
    "d1b9068e0621b28099cb4f1e1227a1108f5e78f43680fd0d29ccec695dff4f67a45000fce0b3d83c4b01"
)


def digest_of(key: Ed25519PrivateKey) -> bytes:
    """The digest of a public key, as in certificates."""
    return key_digest(public_bytes(key))


def mandate() -> bytes:
    """The mandate of a user for a node, extended for a second one."""
    data = make_mandate(USER, TERMS, EVERY_PURPOSE, 5_000, 9_000)
    return extend(data, HOME, 8, digest_of(SECOND), FOR_CHILDREN, 8_000)


def test_digests_of_keys_are_those_of_certificates() -> None:
    """A node's key is known to others by the digest in its certificate."""
    assert digest_of(USER) == certificates.key_digest(USER.public_key())


def test_the_bytes_never_change() -> None:
    """Other releases read what this one writes."""
    assert mandate().hex() == FROZEN_MANDATE
    assert make_register(USER, CLUSTER, 3, {"uid:1000": (b"k" * 32,)}).data.hex() == FROZEN_REGISTER


def test_a_mandate_says_what_all_its_parts_leave() -> None:
    """It is for the node that is named last, with the purposes and the time that all of them have."""
    read = read_mandate(mandate())
    assert (read.principal, read.key, read.cluster) == ("uid:1000", public_bytes(USER), CLUSTER)
    assert (read.node, read.node_key) == (8, digest_of(SECOND))
    assert (read.purposes, read.made_ms, read.end_ms) == (FOR_CHILDREN, 5_000, 8_000)
    further = read_mandate(extend(mandate(), SECOND, 9, digest_of(THIRD), EVERY_PURPOSE, 2**40))
    assert (further.node, further.purposes, further.end_ms) == (9, FOR_CHILDREN, 8_000)
    none = read_mandate(extend(mandate(), SECOND, 9, digest_of(THIRD), Purpose.SCHEDULING, 1))
    assert (none.purposes, none.end_ms) == (Purpose.NONE, 1)


def test_only_the_node_that_has_a_mandate_extends_it() -> None:
    """Neither the user nor another node signs for it."""
    for stranger in (USER, HOME, THIRD):
        with pytest.raises(ProtocolError, match="not signed by the node"):
            read_mandate(extend(mandate(), stranger, 9, digest_of(THIRD), FOR_CHILDREN, 8_000))


def test_extensions_are_bounded() -> None:
    """A chain has an end, so that it fits its message."""
    data = make_mandate(USER, TERMS, EVERY_PURPOSE, 5_000, 2**40)
    for node in range(limits.MANDATE_EXTENSIONS_MAX):
        data = extend(data, HOME, node + 1, digest_of(HOME), FOR_CHILDREN, 2**40)
    assert len(data) <= limits.MANDATE_BYTES_MAX
    read_mandate(data)
    with pytest.raises(ProtocolError, match="at most"):
        extend(data, HOME, 99, digest_of(HOME), FOR_CHILDREN, 2**40)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(mandate()) - 1), st.integers(1, 255))
def test_no_byte_of_a_mandate_can_be_changed(place: int, change: int) -> None:
    """Each byte is signed, or is the signature; what is read after a change is what was there before."""
    data = bytearray(mandate())
    data[place] ^= change
    with contextlib.suppress(ProtocolError):
        assert replace(read_mandate(bytes(data)), data=mandate()) == read_mandate(mandate())


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """Rubbish raises ProtocolError and nothing else."""
    for read in (read_mandate, read_register):
        with pytest.raises(ProtocolError):
            read(data)


def test_a_register_names_each_principal_once() -> None:
    """It comes back as it was made; a changed one is refused."""
    register = make_register(USER, CLUSTER, 3, {"uid:1000": (b"k" * 32, b"l" * 32)})
    assert read_register(register.data) == register
    changed = register.data.replace(b"uid:1000", b"uid:1001")
    with pytest.raises(ProtocolError, match="signature"):
        read_register(changed)
    with pytest.raises(ProtocolError, match="or none"):
        read_register(make_register(USER, CLUSTER, 3, {"": (b"k" * 32,)}).data)


def test_a_register_may_have_a_principal_without_keys() -> None:
    """Nobody acts for it at other nodes then."""
    register = make_register(USER, CLUSTER, 3, {"uid:1000": ()})
    assert read_register(register.data).keys == {"uid:1000": ()}


def test_what_a_mandate_states_is_read_without_its_signatures() -> None:
    """It is the same as with them, and a forged one says the same but for its bytes."""
    data = extend(mandate(), SECOND, 9, digest_of(THIRD), FOR_CHILDREN, 8_000)
    assert stated_mandate(data) == read_mandate(data)
    assert stated_mandate(data).nodes == (7, 8, 9)
    forged = bytearray(mandate())
    forged[-2] ^= 1
    assert replace(stated_mandate(bytes(forged)), data=mandate()) == read_mandate(mandate())


def test_a_full_register_fits_its_message() -> None:
    """As many users as can be enrolled, each with a key."""
    keys = {f"uid:{4_000_000_000 + number}": (bytes(32),) for number in range(limits.ENROLLED_MAX)}
    assert len(make_register(USER, CLUSTER, 2**60, keys).data) <= limits.REGISTER_BYTES_MAX

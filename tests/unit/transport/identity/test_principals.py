"""The stored register of users with keys: which one counts, and what a node reads at its start."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dios.errors import DamagedError, NotPermittedError, ProtocolError
from dios.transport.identity import durable_files
from dios.transport.identity.principals import PrincipalRegister
from dios.wire.mandates import make_register, public_bytes

CLUSTER = b"c" * 32
KEYS = {"uid:1000": (b"k" * 32,)}


@pytest.fixture
def administrator() -> Ed25519PrivateKey:
    """The key that signs."""
    return Ed25519PrivateKey.generate()


async def test_a_newer_register_of_the_same_signer_counts(
    tmp_path: Path, administrator: Ed25519PrivateKey
) -> None:
    """It is stored, and read again at the next start; the same one, or an older one, changes nothing."""
    register = PrincipalRegister(tmp_path, CLUSTER)
    assert register.present is None
    first = make_register(administrator, CLUSTER, 1, {})
    second = make_register(administrator, CLUSTER, 2, KEYS)
    assert register.accept(first.data) == first
    assert register.accept(second.data) == second
    assert register.accept(second.data) is None
    assert register.accept(first.data) is None
    await register.save()
    again = PrincipalRegister(tmp_path, CLUSTER)
    assert again.present == second
    assert again.is_known(second.data)
    assert not again.is_known(first.data)


def test_nodes_agree_on_one_of_two_with_the_same_number(
    tmp_path: Path, administrator: Ed25519PrivateKey
) -> None:
    """In whatever order they hear of them."""
    pair = [make_register(administrator, CLUSTER, 1, keys) for keys in ({}, KEYS)]
    stored = []
    for name, order in (("n1", pair), ("n2", pair[::-1])):
        (tmp_path / name).mkdir()
        register = PrincipalRegister(tmp_path / name, CLUSTER)
        for candidate in order:
            register.accept(candidate.data)
        stored.append(register.present)
    assert stored[0] == stored[1]


async def test_the_setting_names_the_signer(tmp_path: Path, administrator: Ed25519PrivateKey) -> None:
    """Then the first register counts only if that key has signed it, also one that is stored already."""
    register = PrincipalRegister(tmp_path, CLUSTER, public_bytes(administrator))
    stranger = Ed25519PrivateKey.generate()
    foreign = make_register(stranger, CLUSTER, 1, KEYS)
    with pytest.raises(NotPermittedError, match="administrator"):
        register.accept(foreign.data)
    believing = PrincipalRegister(tmp_path, CLUSTER)
    assert believing.accept(foreign.data)
    await believing.save()
    with pytest.raises(DamagedError, match="Remove the file"):
        PrincipalRegister(tmp_path, CLUSTER, public_bytes(administrator))


def test_a_register_of_another_cluster_is_refused(tmp_path: Path, administrator: Ed25519PrivateKey) -> None:
    """An administrator of two clusters has users in each."""
    register = PrincipalRegister(tmp_path, CLUSTER)
    with pytest.raises(ProtocolError, match="another cluster"):
        register.accept(make_register(administrator, b"d" * 32, 1, KEYS).data)


def test_a_damaged_file_says_what_to_do(tmp_path: Path) -> None:
    """The other nodes have it, too."""
    (tmp_path / "principals").write_bytes(b"rubbish")
    with pytest.raises(DamagedError, match="Remove the file"):
        PrincipalRegister(tmp_path, CLUSTER)


async def test_a_register_counts_before_it_is_stored(
    tmp_path: Path, administrator: Ed25519PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may remove a key. It is stored as soon as there is room, and only once."""
    register = PrincipalRegister(tmp_path, CLUSTER)
    first = make_register(administrator, CLUSTER, 1, KEYS)
    assert register.accept(first.data)
    with monkeypatch.context() as full:
        full.setattr(durable_files, "write", _no_room)
        with pytest.raises(OSError, match="no room"):
            await register.save()
    assert register.present == first
    assert PrincipalRegister(tmp_path, CLUSTER).present is None
    await register.save()
    assert PrincipalRegister(tmp_path, CLUSTER).present == first
    monkeypatch.setattr(durable_files, "write", _no_room)
    await register.save()


def _no_room(_path: Path, _data: bytes) -> None:
    raise OSError(errno.ENOSPC, "no room")

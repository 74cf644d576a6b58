import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dios import limits
from dios.errors import DamagedError, ExistsError, InvalidError, LimitError, NotPermittedError, ProtocolError
from dios.transport.identity import durable_files, tokens
from dios.transport.identity.certificates import CertificateRole, cards_of, check_signatures, pem_of_key
from dios.transport.identity.identity import (
    FOLDER,
    Identity,
    admit_here,
    adopt,
    authorize,
    create_cluster,
    known_of,
    load,
    next_epoch,
    sign_node,
)
from dios.wire.node_roles import NodeRole
from tests.support.peers.connections import make_cluster, renewed
from tests.support.peers.statements import revoke


def loaded(folder: Path) -> Identity:
    """The identity that must be there."""
    own = load(folder)
    assert own is not None
    return own


# -- making and loading -----------------------------------------------------------------------------
def test_a_cluster_begins_with_one_node(tmp_path: Path) -> None:
    """The first node's identity is loaded as it was made, and its chain ends at the authority."""
    created = create_cluster(tmp_path, name="n1")
    stored = loaded(tmp_path)
    assert (stored.node, stored.name, stored.cluster, stored.secret) == (
        created.node,
        "n1",
        created.cluster,
        created.secret,
    )
    assert 0 < created.node < 2**63
    assert len(created.secret) == len(created.cluster) == 32
    assert [card.role for card in cards_of(created.chain)] == [
        CertificateRole.NODE,
        CertificateRole.ROOT,
    ]
    check_signatures(created.chain)


def test_no_two_clusters_are_alike(tmp_path: Path) -> None:
    """Two clusters share neither id, authority nor secret."""
    first, two = create_cluster(tmp_path / "a", name="n"), create_cluster(tmp_path / "b", name="n")
    assert first.node != two.node
    assert first.cluster != two.cluster
    assert first.secret != two.secret


def test_the_authoritys_key_is_kept_nowhere(tmp_path: Path) -> None:
    """The only private key of a new cluster is the node's own."""
    created = create_cluster(tmp_path, name="n1")
    keys = [path.name for path in created.folder.iterdir() if b"PRIVATE KEY" in path.read_bytes()]
    assert keys == ["node.key"]
    assert cards_of(created.chain)[1].key != cards_of(created.chain)[0].key


def test_a_directory_has_one_identity(tmp_path: Path) -> None:
    """A directory with an identity is given no other, and keeps the one it has."""
    n1, n2 = make_cluster(tmp_path)
    with pytest.raises(ExistsError, match="dios-node start"):
        create_cluster(tmp_path / "n1", name="again")
    with pytest.raises(ExistsError):
        admit_here(n1, tmp_path / "n2", name="again")
    assert (loaded(tmp_path / "n1").node, loaded(tmp_path / "n2").node) == (n1.node, n2.node)
    assert "again" not in [known.name for known in n1.trust.known]


def test_a_lone_nodes_directory_has_no_identity(tmp_path: Path) -> None:
    """Where no cluster was made or joined there is none to load."""
    assert load(tmp_path) is None


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "ä", "a\n", "x" * (limits.NODE_NAME_BYTES_MAX + 1)])
def test_a_name_fits_a_certificate_and_a_table(tmp_path: Path, name: str) -> None:
    """What is no name is refused before anything is made."""
    with pytest.raises(InvalidError, match="letters, digits"):
        create_cluster(tmp_path, name=name)
    assert load(tmp_path) is None


def test_the_secret_and_the_keys_are_shown_nowhere(tmp_path: Path) -> None:
    """The text of an identity holds no secret, and only the owner can read its files."""
    created = create_cluster(tmp_path, name="n1")
    assert created.secret.hex() not in repr(created)
    assert str(created.secret)[2:-1] not in repr(created)
    assert {stat.S_IMODE(path.stat().st_mode) for path in created.folder.iterdir()} == {0o600}
    assert stat.S_IMODE(created.folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("name", ["node.key", "cluster.secret"])
def test_a_secret_that_others_can_read_is_refused(tmp_path: Path, name: str) -> None:
    """A node does not start with a key or secret that is open to others, and says how to close it."""
    path = create_cluster(tmp_path, name="n1").folder / name
    path.chmod(0o640)
    with pytest.raises(NotPermittedError, match=re.escape(f"chmod 600 {path}")):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        (name, damage)
        for name in ("authority.pem", "node.pem", "node.key", "cluster.secret", "revoked", "known")
        for damage in ("gone", "empty", "rubbish", "another's")
        # The last three fit any cluster.
        if damage != "another's" or name.endswith(("pem", "key"))
    ],
)
def test_a_damaged_identity_is_not_loaded(tmp_path: Path, name: str, damage: str) -> None:
    """With any file gone, empty or overwritten, or with another cluster's, loading says so."""
    path = create_cluster(tmp_path / "a", name="n1").folder / name
    other = create_cluster(tmp_path / "b", name="n1").folder / name
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes({"empty": b"", "rubbish": b"\xff rubbish", "another's": other.read_bytes()}[damage])
    with pytest.raises(DamagedError):
        load(tmp_path / "a")


def test_an_interrupted_beginning_is_none(tmp_path: Path) -> None:
    """A process that dies before all files are there leaves nothing that is taken for an identity."""
    script = (
        "import os, sys, pathlib\n"
        "from dios.transport.identity import durable_files as durable, identity\n"
        "write, count = durable.write, 0\n"
        "def failing(path, data):\n"
        "    global count\n"
        "    count += 1\n"
        "    if count > int(sys.argv[2]): os._exit(7)\n"
        "    write(path, data)\n"
        "durable.write = failing\n"
        "identity.create_cluster(pathlib.Path(sys.argv[1]), name='n1')\n"
    )
    for done in (0, 3, 6):
        ended = subprocess.run([sys.executable, "-c", script, str(tmp_path), str(done)], check=False)
        assert ended.returncode == 7
        assert load(tmp_path) is None
    create_cluster(tmp_path, name="n1")
    assert [path.name for path in tmp_path.iterdir()] == [FOLDER]


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    """A small file replaces the one before it; where it cannot, nothing is left beside what is there."""
    durable_files.write(tmp_path / "file", b"old")
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        durable_files.write(tmp_path / "folder", b"new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]
    durable_files.write(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"


# -- the counter of starts --------------------------------------------------------------------------
def test_every_start_has_an_epoch_of_its_own(tmp_path: Path) -> None:
    """Epochs count up from 1, over restarts, and a counter that cannot be read is never begun anew."""
    created = create_cluster(tmp_path, name="n1")
    assert [next_epoch(tmp_path) for _ in range(3)] == [1, 2, 3]
    for broken in ("", "-2", "many"):
        (created.folder / "epoch").write_text(broken)
        with pytest.raises(DamagedError, match="higher than any before"):
            next_epoch(tmp_path)


def test_epochs_end_before_other_nodes_refuse_them(tmp_path: Path) -> None:
    """The last epoch that a message can carry is the last start; then the error names the way out."""
    created = create_cluster(tmp_path, name="n1")
    (created.folder / "epoch").write_text(str(limits.EPOCH_MAX - 1))
    assert next_epoch(tmp_path) == limits.EPOCH_MAX
    with pytest.raises(DamagedError, match="new data directory"):
        next_epoch(tmp_path)


# -- admitting --------------------------------------------------------------------------------------
def test_every_node_admits_others(tmp_path: Path) -> None:
    """A node that was admitted admits the next; all have one authority and one secret."""
    nodes = make_cluster(tmp_path, "n1 n2 n3", in_a_row=True)
    assert len({node.cluster for node in nodes}) == len({node.secret for node in nodes}) == 1
    assert [card.name for card in cards_of(nodes[2].chain)] == ["n3", "n2", "n1", "dios"]
    check_signatures(nodes[2].chain)


def test_two_nodes_have_two_names(tmp_path: Path) -> None:
    """A name that a known node has is given to no other."""
    n1, _ = make_cluster(tmp_path)
    for name in ("n1", "n2"):
        with pytest.raises(ExistsError, match=f"dios node forget {name}"):
            admit_here(n1, tmp_path / "other", name=name)
    assert load(tmp_path / "other") is None


def test_a_chain_ends_some_time_and_the_key_of_the_root_shortens_it(tmp_path: Path) -> None:
    """The last node of the longest chain admits nobody; no other authority puts it nearer to the root."""
    names = [f"n{number}" for number in range(1, limits.CHAIN_CERTIFICATES_MAX)]
    key = tmp_path / "root.key"
    last = first = create_cluster(tmp_path / names[0], name=names[0], root_key_file=key)
    for name in names[1:]:
        last = admit_here(last, tmp_path / name, name=name, role=NodeRole.AUTHORITY)
    assert len(last.chain) == limits.CHAIN_CERTIFICATES_MAX
    with pytest.raises(LimitError, match="earlier"):
        admit_here(last, tmp_path / "next", name="next")
    first.trust.note(known_of(last.cards))
    with pytest.raises(NotPermittedError, match="no end"):
        renewed(first, last)
    shorter = authorize(tmp_path / names[-1], key)
    assert (shorter.node, shorter.name, len(shorter.chain)) == (last.node, last.name, 2)
    assert loaded(tmp_path / names[-1]).chain == shorter.chain
    assert admit_here(shorter, tmp_path / "next", name="next").name == "next"


def test_the_roles_in_a_chain_follow_each_other(tmp_path: Path) -> None:
    """A chain is a node or a joiner, then nodes, then one authority, and has its bounds."""
    n1, n2 = make_cluster(tmp_path, role=NodeRole.AUTHORITY)
    node, _, root = n2.chain
    joiner = tokens.read(tokens.issue(n1)).certificate
    assert [card.role for card in cards_of((joiner, *n1.chain))] == [
        CertificateRole.JOIN,
        CertificateRole.NODE,
        CertificateRole.ROOT,
    ]
    longest = (*[node] * (limits.CHAIN_CERTIFICATES_MAX - 1), root)
    assert len(cards_of(longest)) == limits.CHAIN_CERTIFICATES_MAX
    short = ((), (root,), (root, root), (node, node))
    for chain in (*short, (node, joiner, root), (node, root, root), (node, *longest)):
        with pytest.raises(ProtocolError, match="chain"):
            cards_of(chain)


def test_only_known_nodes_are_signed_anew(tmp_path: Path) -> None:
    """Neither a stranger's nor a revoked node's certificate is renewed, and nobody adopts another's chain."""
    n1, n2 = make_cluster(tmp_path / "a")
    stranger = create_cluster(tmp_path / "b", name="n1")
    with pytest.raises(NotPermittedError):
        renewed(n1, stranger)
    with pytest.raises(ProtocolError):
        adopt(n2, n1.chain)
    with pytest.raises(ProtocolError):
        adopt(n2, (n2.chain[0], *stranger.chain))
    for signer in (n1, stranger):
        # For its own key, but under another id, and in the second case in another cluster.
        with pytest.raises(ProtocolError, match="another node or another cluster"):
            adopt(n2, sign_node(signer, "n3", n2.key().public_key()))
    revoke(n1.trust, n2.node)
    with pytest.raises(NotPermittedError):
        renewed(n1, n2)


def test_a_cluster_has_room_for_so_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node over the bound is refused, and forgetting one makes room."""
    monkeypatch.setattr(limits, "NODES_MAX", 2)
    n1, n2 = make_cluster(tmp_path)
    with pytest.raises(LimitError, match="dios node forget"):
        sign_node(n1, "n3", Ed25519PrivateKey.generate().public_key())
    revoke(n1.trust, n2.node)
    sign_node(n1, "n3", Ed25519PrivateKey.generate().public_key())


def test_key_and_certificate_belong_together(tmp_path: Path) -> None:
    """A key that was exchanged for another is noticed when the identity is loaded."""
    created = create_cluster(tmp_path, name="n1")
    (created.folder / "node.key").write_bytes(pem_of_key(Ed25519PrivateKey.generate()))
    with pytest.raises(DamagedError):
        load(tmp_path)


def test_a_copied_directory_is_the_same_node(tmp_path: Path) -> None:
    """An identity means the same wherever its directory is moved."""
    created = create_cluster(tmp_path / "a", name="n1")
    shutil.move(tmp_path / "a", tmp_path / "b")
    assert loaded(tmp_path / "b").node == created.node
    assert os.listdir(tmp_path) == ["b"]  # noqa: PTH208 - names are what is compared

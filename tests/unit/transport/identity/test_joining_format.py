"""What is stored and sent stays readable: frozen vectors, and the page's numbers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest
from cryptography import x509

from dios import limits
from dios.core.model import names
from dios.transport.identity import generations, joining, renewal, statements, tokens, trust
from dios.transport.identity.certificates import card_of, cards_of, check_signatures, signer_of
from dios.transport.identity.trust import Known
from dios.wire.node_roles import NodeRole

ROOT = Path(__file__).resolve().parents[4]
PAGE = (ROOT / "docs" / "clusters.md").read_text()
VECTORS: dict[str, dict[str, str]] = json.loads((Path(__file__).parent / "joining_vectors.json").read_text())
NUMBERS = re.findall(r"`([A-Z_]+)`\s\(([\d,]+)\)", PAGE)
KNOWN = (Known(5, "n5", bytes(range(32)), (7, 8)), Known(2**63 - 1, "n6", bytes(32)))


@pytest.mark.parametrize(("name", "value"), NUMBERS, ids=[name for name, _ in NUMBERS])
def test_the_pages_numbers_are_the_bounds(name: str, value: str) -> None:
    """Each bound that the page names has the value that stands beside it."""
    assert int(value.replace(",", "")) == getattr(limits, name)


def test_the_page_has_its_numbers() -> None:
    """The page names the bounds of handshakes, joining, chains and lists."""
    assert {"HANDSHAKE_MS_MAX", "JOIN_MS_MAX", "CHAIN_CERTIFICATES_MAX", "TRUST_BYTES_MAX"} <= dict(
        NUMBERS
    ).keys()


def test_a_token_of_this_version_is_read() -> None:
    """A token that was once given out is still read, and says the same."""
    stored = VECTORS["token"]
    token = tokens.read(stored["text"])
    assert token.cluster.hex() == stored["cluster"]
    assert f"{token.number:016x}" == stored["number"]
    assert signer_of(token.certificate) == (int(stored["signer"], 16), stored["signer_name"])


def test_a_chain_of_this_version_is_read() -> None:
    """Certificates that were once signed still hold, and say the same."""
    chain = tuple(bytes.fromhex(text) for text in VECTORS["chain"].values())
    check_signatures(chain)
    assert [f"{card.role} {card.name} {card.number:016x}" for card in cards_of(chain)] == list(
        VECTORS["cards"]
    )
    # It was signed before there were roles and ends: its nodes sign others, and have no end.
    assert [(card.node_role, card.until_s) for card in cards_of(chain)[:-1]] == [
        (NodeRole.AUTHORITY, None) for _ in chain[:-1]
    ]
    assert {key.hex() for key in (card_of(certificate).key for certificate in chain)} == set(
        VECTORS["cards"].values()
    )


def test_a_renewed_chain_of_this_version_is_read() -> None:
    """A certificate with an admission still holds, says the same, and has the extension of the page."""
    chain = tuple(bytes.fromhex(text) for text in VECTORS["renewed"].values())
    check_signatures(chain)
    assert [card_of(certificate).name for certificate in chain] == ["n3", "b", "r", "dios"]
    assert [card.name for card in cards_of(chain)] == ["n3", "a", "r", "dios"]
    assert cards_of(chain)[0].until_s == 1_801_209_600
    extensions = x509.load_der_x509_certificate(chain[0]).extensions
    unknown = [
        extension for extension in extensions if isinstance(extension.value, x509.UnrecognizedExtension)
    ]
    assert [f"`{extension.oid.dotted_string}`" in PAGE for extension in unknown] == [True]


def test_lists_of_this_version_are_read_and_written() -> None:
    """The lists of revocations and of known nodes have these bytes."""
    stored = VECTORS["lists"]
    assert trust.roster_of(KNOWN).hex() == stored["known"]
    statement = bytes.fromhex(stored["statement"])
    assert trust.statements_of((statement,)).hex() == stored["revoked"]
    read = statements.read(statement, bytes.fromhex(stored["authority"]))
    assert (read.number, read.removed) == (3, {7: 0, 2**63 - 2: 7})
    assert read.kept == {**{known.node: known.key for known in KNOWN}, read.signer.number: read.signer.key}


def test_the_conversation_of_this_version_is_read_and_written() -> None:
    """Request, answer and refusal have these bytes."""
    stored = VECTORS["conversation"]
    for message in (
        joining.JoinRequest(2, "n9", b"request"),
        joining.Admitted((b"one", b"two"), bytes(32), (b"statement",), KNOWN, b"generations"),
        joining.Refused(17, "taken"),
    ):
        data = msgspec.msgpack.encode(message)
        assert data.hex() == stored[type(message).__name__]
        assert msgspec.msgpack.decode(data, type=type(message)) == message


def test_an_admission_of_an_earlier_release_is_read() -> None:
    """It had no later secrets."""
    before = bytes.fromhex(VECTORS["conversation"]["Admitted of 0.2"])
    assert msgspec.msgpack.decode(before, type=joining.Admitted) == joining.Admitted(
        (b"one", b"two"), bytes(32), (b"statement",), KNOWN
    )


def test_generations_of_this_version_are_read_and_written() -> None:
    """The document, the file that has it, and the seals of a group by the first secret and a later one."""
    stored = VECTORS["generations"]
    document = generations.read(bytes.fromhex(stored["document"]), bytes.fromhex(stored["authority"]))
    assert (document.number, document.secrets) == (3, (b"1" * 32, b"2" * 32))
    assert document.withheld == {7, 2**63 - 1}
    known = generations.KnownGenerations(document, (b"0" * 32,))
    assert generations.file_of(known).hex() == stored["file"]
    assert f"{known.mark:016x}" == stored["mark"]
    for name, later in (("first", ()), ("later", document.secrets)):
        assert names.group_name(names.Secrets(bytes(32), later), bytes(16), "uid:1").hex() == stored[name]


def test_the_renewal_of_this_version_is_read_and_written() -> None:
    """Request, answer and refusal of a renewal have these bytes."""
    frozen = {
        renewal.RenewalRequest(1, bytes(32)): "93a572656e657701c420" + 32 * "00",
        renewal.RenewalAnswer(
            (b"one", b"two"), 1_700_000_000
        ): "93a772656e6577656492c4036f6e65c40374776fce6553f100",
        renewal.RenewalRefusal(1, "no"): "93a77265667573656401a26e6f",
    }
    for message, text in frozen.items():
        assert msgspec.msgpack.encode(message).hex() == text
        assert msgspec.msgpack.decode(bytes.fromhex(text), type=type(message)) == message

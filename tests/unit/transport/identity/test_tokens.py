import base64
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dios import limits
from dios.errors import DamagedError, InvalidError, LimitError, NotPermittedError
from dios.transport.identity import tokens
from dios.transport.identity.identity import Identity
from tests.support.peers.connections import make_cluster


@pytest.fixture
def n1(tmp_path: Path) -> Identity:
    """A cluster's first node."""
    return make_cluster(tmp_path, "n1")[0]


def test_a_token_is_one_line_that_pins_the_authority(n1: Identity) -> None:
    """Its text has no spaces, holds the cluster it is for, and tells its secret to nobody who prints it."""
    text = tokens.issue(n1)
    assert text == "".join(text.split())
    token = tokens.read(f"  {text}\n")
    assert token.cluster == n1.cluster
    assert token.key.private_bytes_raw().hex() not in repr(token)


def test_every_altered_character_is_noticed(n1: Identity) -> None:
    """A token with any one character exchanged, left out or doubled is refused."""
    text = tokens.issue(n1)
    for place, char in enumerate(text):
        other = "A" if char != "A" else "B"
        for altered in (
            text[:place] + other + text[place + 1 :],
            text[:place] + chr(ord(char) ^ 1) + text[place + 1 :],
            text[:place] + text[place + 1 :],
            text[:place] + char + text[place:],
        ):
            if altered != text:
                with pytest.raises(InvalidError):
                    tokens.read(altered)


@given(st.text() | st.binary().map(lambda data: "dios-join-1." + base64.urlsafe_b64encode(data).decode()))
def test_rubbish_is_no_token(text: str) -> None:
    """Whatever is not a token is refused as such."""
    with pytest.raises(InvalidError, match="invitation"):
        tokens.read(text)


def test_a_token_counts_its_uses(n1: Identity) -> None:
    """A token for two works twice; then it is used up, also for who reads the book anew."""
    token = tokens.read(tokens.issue(n1, uses=2))
    for _ in range(2):
        tokens.check(n1.folder, token.number)
        tokens.use(n1.folder, token.number)
    for refused in (tokens.check, tokens.use):
        with pytest.raises(NotPermittedError, match="used up"):
            refused(n1.folder, token.number)


def test_a_token_expires_by_its_nodes_clock(n1: Identity) -> None:
    """It works until its time has passed at the node that made it, and is then forgotten for good."""
    token = tokens.read(tokens.issue(n1, valid_s=60, now_s=2_000_000_000))
    tokens.check(n1.folder, token.number, now_s=2_000_000_059)
    with pytest.raises(NotPermittedError, match="expired"):
        tokens.use(n1.folder, token.number, now_s=2_000_000_060)
    tokens.use(n1.folder, tokens.read(tokens.issue(n1)).number)
    with pytest.raises(NotPermittedError, match="expired"):
        tokens.check(n1.folder, token.number, now_s=2_000_000_060)


def test_a_token_is_good_at_one_node(tmp_path: Path) -> None:
    """Another node of the cluster has not made it, and refuses it."""
    n1, n2 = make_cluster(tmp_path)
    token = tokens.read(tokens.issue(n1))
    with pytest.raises(NotPermittedError):
        tokens.use(n2.folder, token.number)


@pytest.mark.parametrize(
    ("uses", "valid_s"), [(0, 60), (limits.TOKEN_USES_MAX + 1, 60), (1, 0), (1, limits.TOKEN_VALID_S_MAX + 1)]
)
def test_a_token_has_bounds(n1: Identity, uses: int, valid_s: int) -> None:
    """Numbers out of bounds are refused, and no token is made."""
    with pytest.raises(InvalidError):
        tokens.issue(n1, uses=uses, valid_s=valid_s)
    assert not (n1.folder / "tokens").exists()


def test_so_many_tokens_are_open(n1: Identity, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over the bound none is made until one has expired."""
    monkeypatch.setattr(limits, "TOKENS_MAX", 2)
    for _ in range(2):
        tokens.issue(n1)
    with pytest.raises(LimitError, match="expire"):
        tokens.issue(n1)


def test_a_damaged_book_lets_nobody_in(n1: Identity) -> None:
    """When the book cannot be read every token is refused, and the error says what to do."""
    token = tokens.read(tokens.issue(n1))
    (n1.folder / "tokens").write_bytes(b"\xc1")
    with pytest.raises(DamagedError, match="make new invitations"):
        tokens.use(n1.folder, token.number)

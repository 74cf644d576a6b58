"""Sealed tokens: everybody can narrow one, nobody can widen one, its cluster alone verifies it (ADR 0101)."""

from __future__ import annotations

import contextlib
from typing import Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dios import limits
from dios.errors import InvalidError, LimitError, NotPermittedError
from dios.wire.sealed_tokens import (
    Caveat,
    OnlyHolder,
    OnlyPath,
    OnlyRights,
    OnlyUntil,
    SealedToken,
    TokenGrant,
    TokenHolder,
    TokenTerms,
    attenuate,
    decode_token,
    encode_token,
    format_token,
    parse_token,
    record_name,
    seal_grant,
    verify,
)
from dios.wire.types import Permission

SECRET: Final = bytes(range(32))
FOREIGN: Final = b"\x07" * 32
GRANT: Final = TokenGrant(b"\x01" * 32, b"\x02" * 32, b"\x03" * 32, b"\x04" * 32, "uid:5", 3, 1_000, "papers")
TOKEN: Final = seal_grant(record_name(SECRET, GRANT), GRANT)
HOLDERS: Final = (
    TokenHolder(b"", "uid:5"), TokenHolder(b"", "uid:6"), TokenHolder(FOREIGN, "uid:5"),
    TokenHolder(FOREIGN, "uid:7"),
)  # fmt: skip
PATHS: Final = ("a", "a/b", "a/b/c", "ab", "b")

caveats: Final[st.SearchStrategy[Caveat]] = st.one_of(
    st.integers(0, 3).map(OnlyRights),
    st.integers(1, 1_200).map(OnlyUntil),
    st.builds(OnlyHolder, st.sampled_from([b"", FOREIGN]), st.sampled_from(["", "uid:5", "uid:7"])),
    st.sampled_from(PATHS).map(OnlyPath),
)
chains: Final = st.lists(caveats, max_size=5)


def terms(token: SealedToken, holder: TokenHolder, now_ns: int) -> TokenTerms | None:
    """What is left of the token; None if it is refused."""
    try:
        return verify(SECRET, token, holder, now_ns)
    except NotPermittedError:
        return None


@settings(max_examples=60)
@given(chains, caveats, st.sampled_from(HOLDERS), st.integers(0, 1_100))
def test_a_caveat_only_narrows(chain: list[Caveat], more: Caveat, holder: TokenHolder, now_ns: int) -> None:
    """Whatever a token with one caveat more permits, the token without it permits as well."""
    wide = attenuate(TOKEN, *chain)
    narrow = terms(attenuate(wide, more), holder, now_ns)
    if narrow is None:
        return
    before = terms(wide, holder, now_ns)
    assert before is not None
    assert narrow.rights & ~before.rights == 0
    assert narrow.expires_ns <= before.expires_ns
    assert all(before.admits(path) for path in PATHS if narrow.admits(path))


@settings(max_examples=30)
@given(chains)
def test_adding_caveats_at_once_or_one_by_one_is_the_same(chain: list[Caveat]) -> None:
    """Each holder on the way adds its own, and the seal of the whole chain is one."""
    token = TOKEN
    for caveat in chain:
        token = attenuate(parse_token(format_token(token)), caveat)
    assert token == attenuate(TOKEN, *chain)


@settings(max_examples=30)
@given(chains.filter(bool), st.data())
def test_a_caveat_cannot_be_removed_moved_or_changed(chain: list[Caveat], data: st.DataObject) -> None:
    """With the seal of a token, every other list of caveats is refused for everybody."""
    token = attenuate(TOKEN, *chain)
    place = data.draw(st.integers(0, len(chain) - 1))
    others = {
        tuple(chain[:place] + chain[place + 1 :]),
        tuple(chain[:place]),
        tuple(chain[::-1]),
        (*chain[:place], data.draw(caveats), *chain[place + 1 :]),
        (*chain, data.draw(caveats)),
    } - {tuple(chain)}
    for other in others:
        changed = SealedToken(token.grant, other, token.seal)
        for holder in HOLDERS:
            with pytest.raises(NotPermittedError, match="seal of the token does not match"):
                verify(SECRET, changed, holder, 1)


@pytest.mark.parametrize(
    "changed",
    [
        {"rights": 1}, {"expires_ns": 1_001}, {"issuer": "uid:6"}, {"group": bytes(32)},
        {"catalogue": bytes(32)}, {"cluster": FOREIGN}, {"nonce": bytes(32)}, {"alias": "others"},
    ],
)  # fmt: skip
def test_the_seal_binds_every_field_of_the_grant(changed: dict[str, object]) -> None:
    """A changed grant is forged, and so is one that another cluster's secret sealed."""
    forged = SealedToken(msgspec.structs.replace(GRANT, **changed), (), TOKEN.seal)
    for secret, token in ((SECRET, forged), (FOREIGN, TOKEN)):
        with pytest.raises(NotPermittedError, match="seal of the token does not match"):
            verify(secret, token, HOLDERS[0], 1)


def test_the_record_name_seals_and_the_seal_does_not_show_it() -> None:
    """The seal of the grant is not the name of its record, which opens nothing to a holder."""
    assert TOKEN.seal != record_name(SECRET, GRANT)
    assert seal_grant(record_name(SECRET, GRANT), GRANT) == TOKEN


def test_a_token_is_for_its_cluster_and_user_alone() -> None:
    """A token for one cluster is refused in another, and at home; one for home only is refused abroad."""
    abroad = attenuate(TOKEN, OnlyHolder(FOREIGN, "uid:7"))
    home = attenuate(TOKEN, OnlyHolder(b""))
    assert [terms(abroad, holder, 1) is not None for holder in HOLDERS] == [False, False, False, True]
    assert [terms(home, holder, 1) is not None for holder in HOLDERS] == [True, True, False, False]
    assert terms(attenuate(home, OnlyHolder(FOREIGN)), HOLDERS[0], 1) is None, "both must hold"


def test_only_the_verifier_has_a_clock() -> None:
    """The last moment counts, whatever a holder adds; the moment itself is over."""
    longer = attenuate(TOKEN, OnlyUntil(5_000))
    assert [terms(longer, HOLDERS[0], now) is not None for now in (999, 1_000, 4_000)] == [True, False, False]
    assert terms(attenuate(longer, OnlyUntil(10)), HOLDERS[0], 10) is None


def test_a_path_admits_itself_and_what_is_below() -> None:
    """A common beginning of letters is not enough, and all paths must hold."""
    found = terms(attenuate(TOKEN, OnlyPath("a")), HOLDERS[0], 1)
    assert found is not None
    assert [found.admits(path) for path in PATHS] == [True, True, True, False, False]
    both = terms(attenuate(TOKEN, OnlyPath("a/b"), OnlyPath("b")), HOLDERS[0], 1)
    assert both is not None
    assert not any(both.admits(path) for path in PATHS)


@given(st.binary(max_size=200), st.integers(0, 400), st.integers(1, 255))
def test_damaged_tokens_are_refused(junk: bytes, place: int, bit: int) -> None:
    """Junk is refused; so is a changed byte, if not by the decoder then by the seal."""
    with pytest.raises(InvalidError):
        decode_token(junk)
    data = bytearray(encode_token(attenuate(TOKEN, OnlyPath("a"))))
    data[place % len(data)] ^= bit
    with contextlib.suppress(InvalidError):
        changed = decode_token(bytes(data))
        assert all(terms(changed, holder, 1) is None for holder in HOLDERS)


def test_text_is_checked_and_shows_no_secret() -> None:
    """A part of a text, a changed letter and other texts are refused; ``repr`` has no name and no seal."""
    text = format_token(TOKEN)
    assert parse_token(f" {text}\n") == TOKEN
    for wrong in (text[:-1], text[:-3] + "AAA", text + "A", "diosgrant1x", "", "diostoken1", text + "é"):
        with pytest.raises(InvalidError):
            parse_token(wrong)
    shown = repr(TOKEN)
    assert not any(part in shown for part in (repr(TOKEN.seal), TOKEN.seal.hex(), GRANT.group.hex()))


def test_a_token_stays_small() -> None:
    """There is a bound on caveats and on bytes."""
    with pytest.raises(LimitError):
        attenuate(TOKEN, *[OnlyRights(1)] * (limits.SEALED_TOKEN_CAVEATS_MAX + 1))
    with pytest.raises(LimitError):
        attenuate(TOKEN, *[OnlyPath("x" * limits.SEALED_TOKEN_PATH_CHARS_MAX)] * 9)


def test_the_format_is_frozen() -> None:
    """The vector of version 1; docs/tokens.md specifies it."""
    token = attenuate(TOKEN, OnlyRights(1), OnlyUntil(900), OnlyHolder(FOREIGN, "uid:7"), OnlyPath("a/b"))
    assert format_token(token) == FROZEN
    assert verify(SECRET, parse_token(FROZEN), HOLDERS[3], 1) == (Permission.READ, 900, ("a/b",))


FROZEN = (
    "diostoken1k5jEIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBxCACAgICAgICAgICAgICAgICAgICAgICAgICAg"
    "ICAgICAsQgAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwPEIAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBA"
    "QEpXVpZDo1A80D6KZwYXBlcnOUkgEBkgLNA4STA8QgBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBweldWlkOjeSBK"
    "NhL2LEIEu0dILAqKiVp9w56mTUkUI7CaYxoNAifThlngVf2YoG7icUJw"
)

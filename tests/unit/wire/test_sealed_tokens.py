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
        return verify((SECRET,), token, holder, now_ns)[1]
    except NotPermittedError:
        return None


@settings(max_examples=60)
@given(chains, chains, st.sampled_from(HOLDERS), st.integers(0, 1_100))
def test_a_caveat_only_narrows(
    chain: list[Caveat], further: list[Caveat], holder: TokenHolder, now_ns: int
) -> None:
    """Each holder on the way permits nothing that the token before it did not permit, in any chain."""
    token = attenuate(TOKEN, *chain)
    before = terms(token, holder, now_ns)
    for caveat in further:
        token = attenuate(token, caveat)
        after = terms(token, holder, now_ns)
        if after is not None:
            assert before is not None, "a refused token does not become valid again"
            assert after.rights & ~before.rights == 0
            assert after.expires_ns <= before.expires_ns
            assert all(before.admits(path) for path in PATHS if after.admits(path))
        before = after


@settings(max_examples=30)
@given(chains)
def test_adding_caveats_at_once_or_one_by_one_is_the_same(chain: list[Caveat]) -> None:
    """Each holder on the way adds its own, and the seal of the whole chain is one."""
    token = TOKEN
    for caveat in chain:
        token = attenuate(parse_token(format_token(token)), caveat)
    assert token == attenuate(TOKEN, *chain)


@settings(max_examples=60)
@given(chains, st.data())
def test_a_caveat_cannot_be_removed_moved_changed_or_inserted(
    chain: list[Caveat], data: st.DataObject
) -> None:
    """With the seal of a token, every other list of caveats is refused for everybody."""
    token = attenuate(TOKEN, *chain)
    place = data.draw(st.integers(0, len(chain)))
    kept = data.draw(st.lists(st.booleans(), min_size=len(chain), max_size=len(chain)))
    other = data.draw(caveats)
    others = {
        tuple(caveat for caveat, keep in zip(chain, kept, strict=True) if keep),
        tuple(chain[:place] + chain[place + 1 :]),
        tuple(chain[:place]),
        tuple(data.draw(st.permutations(chain))),
        (*chain[:place], other, *chain[place + 1 :]),
        (*chain[:place], other, *chain[place:]),
    } - {tuple(chain)}
    for changed in others:
        forged = SealedToken(token.grant, changed, token.seal)
        for holder in HOLDERS:
            with pytest.raises(NotPermittedError, match="seal of the token does not match"):
                verify((SECRET,), forged, holder, 1)


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
            verify((secret,), token, HOLDERS[0], 1)


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
    granted = terms(attenuate(TOKEN, OnlyPath("a")), HOLDERS[0], 1)
    assert granted is not None
    assert [granted.admits(path) for path in PATHS] == [True, True, True, False, False]
    both = terms(attenuate(TOKEN, OnlyPath("a/b"), OnlyPath("b")), HOLDERS[0], 1)
    assert both is not None
    assert not any(both.admits(path) for path in PATHS)


@given(st.binary(max_size=200))
def test_junk_is_no_token(junk: bytes) -> None:
    """Other bytes are refused with one error."""
    with pytest.raises(InvalidError):
        decode_token(junk)


@settings(max_examples=200)
@given(chains, st.data())
def test_no_byte_can_be_changed_removed_inserted_or_moved(chain: list[Caveat], data: st.DataObject) -> None:
    """Bytes that are not those of the token are refused, by the decoder or by the seal."""
    known = encode_token(attenuate(TOKEN, *chain))
    place, byte = data.draw(st.integers(0, len(known) - 1)), data.draw(st.integers(0, 255))
    width = data.draw(st.integers(0, 3))
    other = data.draw(st.integers(place, len(known)))
    changed = data.draw(
        st.sampled_from(
            [
                known[:place] + bytes([byte]) + known[place + 1 :],
                known[:place] + known[place + width :],
                known[:place] + bytes([byte]) + known[place:],
                known[:place] + known[other:] + known[place:other],
                known + bytes([byte]),
            ]
        )
    )
    if changed != known:
        with contextlib.suppress(InvalidError):
            token = decode_token(changed)
            assert all(terms(token, holder, 1) is None for holder in HOLDERS)


def test_another_form_of_the_same_token_is_refused() -> None:
    """A token has one text: a number in a longer form, or an array without its last default, is no token."""
    known = encode_token(attenuate(TOKEN, OnlyRights(1), OnlyHolder(b"")))
    short, long = b"\x92\x01\x01", b"\x92\x01\xcc\x01"
    assert known.count(short) == 1
    bare = known.replace(b"\x93\x03\xc4\x00\xa0", b"\x92\x03\xc4\x00")
    assert bare != known
    for other in (known.replace(short, long), bare):
        with pytest.raises(InvalidError, match="shortest form"):
            decode_token(other)


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
    _, terms = verify((SECRET,), parse_token(FROZEN), HOLDERS[3], 1)
    assert terms == (Permission.READ, 900, ("a/b",))


def test_a_token_of_an_earlier_secret_is_valid() -> None:
    """Its record has the name that the earlier secret gave it."""
    later = seal_grant(record_name(FOREIGN, GRANT), GRANT)
    for token, secret in ((TOKEN, SECRET), (later, FOREIGN)):
        record, _ = verify((FOREIGN, SECRET), token, HOLDERS[0], 1)
        assert record == record_name(secret, GRANT)


FROZEN = (
    "diostoken1k5jEIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBxCACAgICAgICAgICAgICAgICAgICAgICAgICAg"
    "ICAgICAsQgAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwPEIAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBA"
    "QEpXVpZDo1A80D6KZwYXBlcnOUkgEBkgLNA4STA8QgBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBweldWlkOjeSBK"
    "NhL2LEIEu0dILAqKiVp9w56mTUkUI7CaYxoNAifThlngVf2YoG7icUJw"
)

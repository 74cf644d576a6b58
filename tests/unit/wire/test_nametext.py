from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dios.errors import InvalidError
from dios.wire import nametext
from dios.wire.nametext import fingerprint, format_name, parse_name

NAMES = st.binary(min_size=32, max_size=32)
DIGITS = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"

CONSOLE = bytes(30) + (1).to_bytes(2, "big")
VECTORS = [
    (bytes(32), "dios1qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqcw849d", "1d3aef4e73b6"),
    (CONSOLE, "dios1qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqsd00ds7", "cd4d2daac2f2"),
    (bytes(range(32)), "dios1qqqsyqcyq5rqwzqfpg9scrgwpugpzysnzs23v9ccrydpk8qarc0s36vh95", "0cb60f95c69d"),
    (b"\xff" * 32, "dios1llllllllllllllllllllllllllllllllllllllllllllllllllls6syyv6", "ac84aaaf849c"),
]


def test_the_checksum_is_the_one_of_bip_350() -> None:
    """The checksum's arithmetic accepts the vectors published for bech32m."""
    for text in (
        "a1lqfn3a",
        "abcdef1l7aum6echk45nj3s0wdvt2fg8x9yrzpqzd3ryx",
        "split1checkupstagehandshakeupstreamerranterredcaperredlc445v",
        "?1v759aa",
    ):
        prefix, _, digits = text.rpartition("1")
        values = [DIGITS.index(digit) for digit in digits]
        assert nametext._remainder(nametext._expanded(prefix) + values) == nametext._TARGET


@pytest.mark.parametrize(("name", "text", "short"), VECTORS)
def test_text_and_fingerprint_never_change(name: bytes, text: str, short: str) -> None:
    """The text and the fingerprint of a name are frozen: both are written down by people."""
    assert format_name(name) == text
    assert parse_name(text) == name
    assert fingerprint(name) == short


@given(NAMES)
def test_every_name_comes_back(name: bytes) -> None:
    """What was written is read again as the same name, in capitals and with spaces around it too."""
    text = format_name(name)
    assert parse_name(text) == name
    assert parse_name(f" {text.upper()}\n") == name


@given(NAMES, st.integers(5, 62), st.sampled_from(DIGITS))
def test_every_single_mistake_is_found(name: bytes, place: int, digit: str) -> None:
    """One character replaced by another is refused, wherever it stands."""
    text = format_name(name)
    wrong = text[:place] + digit + text[place + 1 :]
    if wrong == text:
        assert parse_name(wrong) == name
    else:
        with pytest.raises(InvalidError, match="checksum"):
            parse_name(wrong)


def test_every_substitution_in_one_name_is_found() -> None:
    """In one name, all 58 places times 31 wrong digits are refused, and so are all neighbours swapped."""
    text = format_name(bytes(range(32)))
    wrong = {text[:p] + d + text[p + 1 :] for p in range(5, 63) for d in DIGITS}
    wrong |= {text[:p] + text[p + 1] + text[p] + text[p + 2 :] for p in range(5, 62)}
    for candidate in wrong - {text}:
        with pytest.raises(InvalidError, match="checksum"):
            parse_name(candidate)


@given(NAMES, st.integers(5, 62), st.integers(5, 62))
def test_characters_that_changed_places_are_found(name: bytes, first: int, second: int) -> None:
    """Two characters that changed places are refused, near or far."""
    characters = list(format_name(name))
    characters[first], characters[second] = characters[second], characters[first]
    wrong = "".join(characters)
    if wrong == format_name(name):
        assert parse_name(wrong) == name
    else:
        with pytest.raises(InvalidError, match="checksum"):
            parse_name(wrong)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: text[:0], "begins with 'dios1'"),
        (lambda text: text[5:], "begins with 'dios1'"),
        (lambda text: "bios1" + text[5:], "begins with 'dios1'"),
        (lambda text: text[:-1], "has 63 characters, this text has 62"),
        (lambda text: text + "q", "has 63 characters, this text has 64"),
        (lambda text: text[:20] + "b" + text[21:], "character 21 of the name"),
        (lambda text: text[:20] + "é" + text[21:], "character 21 of the name"),
    ],
)
def test_each_fault_has_its_sentence(change: Callable[[str], str], reason: str) -> None:
    """What is no name is refused with the reason, and the reason holds nothing of the secret."""
    text = format_name(bytes(range(32)))
    with pytest.raises(InvalidError, match=reason) as caught:
        parse_name(change(text))
    assert text[8:18] not in str(caught.value)


def test_bits_beyond_the_name_are_refused() -> None:
    """A text whose checksum holds but whose padding is not zero is no name: each name has one text."""
    values = [0] * 51 + [1]
    check = nametext._remainder([*values, *(0,) * 6], nametext._AFTER_PREFIX) ^ nametext._TARGET
    values += [check >> shift & 31 for shift in range(25, -1, -5)]
    with pytest.raises(InvalidError, match="last digit"):
        parse_name("dios1" + "".join(DIGITS[value] for value in values))


@pytest.mark.parametrize("size", [0, 31, 33])
def test_only_32_bytes_are_a_name(size: int) -> None:
    """Bytes of another length are not written as a name."""
    with pytest.raises(InvalidError, match="32 bytes"):
        format_name(bytes(size))


@given(NAMES, NAMES)
def test_fingerprints_are_short_and_tell_names_apart(name: bytes, other: bytes) -> None:
    """A fingerprint has twelve hexadecimal digits, and two names have two of them."""
    assert len(fingerprint(name)) == 12
    assert int(fingerprint(name), 16) >= 0
    assert (fingerprint(name) == fingerprint(other)) == (name == other)

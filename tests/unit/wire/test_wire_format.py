import enum
from pathlib import Path

import msgspec

from dios import errors
from dios.wire import codec, types
from tests.support.wire import descriptions as described

PAGE = (Path(__file__).parents[3] / "docs" / "wire-format.md").read_text()


def test_every_message_is_on_the_page() -> None:
    """Each message, with its tag, its fields, their bounds and defaults, is a row of docs/wire-format.md."""
    kinds: list[type[msgspec.Struct]] = [
        *described.CALLS,
        *described.RESULTS,
        *described.EVENTS,
        *described.PARTS,
    ]
    missing = [row for kind in kinds if (row := described.row(kind)) not in PAGE]
    assert not missing, "bring these rows up to date:\n" + "\n".join(missing)


def test_every_enumeration_is_on_the_page() -> None:
    """Each enumeration, with its numbers, is a row of docs/wire-format.md."""
    kinds: list[type[enum.Enum]] = [*described.enumerations(), types.Permission, types.Flag, errors.Code]
    missing = [row for kind in kinds if (row := described.enumeration_row(kind)) not in PAGE]
    assert not missing, "bring these rows up to date:\n" + "\n".join(missing)


def test_the_page_names_the_version() -> None:
    """The page tells of the version that Hello carries."""
    assert f"Protocol version {codec.PROTOCOL_VERSION}." in PAGE

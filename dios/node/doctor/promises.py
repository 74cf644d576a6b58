"""The promises of docs/threat-model.md, with the mechanisms of a machine on which they depend.

They are read from the page itself, which a wheel has next to this module. ``dios doctor`` shows for each
whether it holds here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from dios.errors import NotSupportedError

_HERE: Final = Path(__file__).resolve().parent
_PAGES: Final = (_HERE / "threat-model.md", _HERE.parents[2] / "docs" / "threat-model.md")
_MARKS: Final = re.compile(r"[`*]|\[([^]]*)\]\([^)]*\)")
_NEEDS: Final = re.compile(r"all of it without ((?:`[^`]+`(?: or )?)+)")
_WITHOUT: Final = re.compile(r"(?:^|; )without `([^`]+)`: (.*?)(?=; without `|$)")


class Promise(NamedTuple):
    """A claim of an ``area``, and what is ``left`` to an attacker in any case.

    The claim falls without any of the mechanisms in ``needs``. ``without`` says by mechanism which part of it
    falls if that is missing.
    """

    area: str
    claim: str
    left: str
    needs: tuple[str, ...]
    without: Mapping[str, str]


def page() -> Path:
    """Return the path of the page: in the installed package, else in the checkout."""
    for path in _PAGES:
        if path.is_file():
            return path
    raise _unreadable("the page is missing")


def promises() -> list[Promise]:
    """Return the rows of the page in their order.

    Raises:
        NotSupportedError: the page is missing or malformed.
    """
    try:
        text = page().read_text(encoding="utf-8")
        rows = list(_rows(text.partition("\n## Promises\n")[2].partition("\n## ")[0]))
    except (OSError, ValueError) as error:
        raise _unreadable(str(error)) from None
    if not rows:
        raise _unreadable("it has no promises")
    return rows


def _unreadable(reason: str) -> NotSupportedError:
    return NotSupportedError(
        f"the promises of the threat model cannot be read: {reason}. This installation of dios is "
        "incomplete: install it again."
    )


def _rows(section: str) -> Iterator[Promise]:
    area = ""
    for line in section.splitlines():
        if line.startswith("### "):
            area = line.removeprefix("### ").partition(":")[0]
        elif line.startswith("| ") and not line.startswith("| claim "):
            claim, _, _, left, falls_away = (cell.strip() for cell in line.strip("|").split("|"))
            needs = _NEEDS.match(falls_away)
            yield Promise(
                area,
                _MARKS.sub(r"\1", claim),
                "" if left == "-" else _MARKS.sub(r"\1", left),
                tuple(needs[1].strip("`").split("` or `")) if needs else (),
                dict(_WITHOUT.findall(falls_away)),
            )

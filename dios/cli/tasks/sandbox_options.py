"""The options of all commands that open a sandbox: one for each argument of ``dios.Sandbox``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from dios.errors import InvalidError
from dios.lib.sandbox.bounds import SandboxBounds

_LIMITS: Final = "Limits and preparation"
_NETWORK: Final = "Its network"


def _seconds(text: str | float) -> float | None:
    if text == "none":
        return None
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no number of seconds, and not none") from None


InputOption = Annotated[
    list[str] | None,
    typer.Option(
        "--input", "-i", metavar="[NAME=]PATH", help="A file to read, as /inputs/NAME; repeat for more."
    ),
]
MemoryOption = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="SIZE",
        help="Memory of the session, such as 512MiB; default: that of the node's tasks.",
    ),
]
CpuOption = Annotated[
    float | None,
    typer.Option(
        "--cpu-seconds",
        metavar="N",
        help="Processor time of the session; default: no limit.",
        rich_help_panel=_LIMITS,
    ),
]
TemplateOption = Annotated[
    str,
    typer.Option(
        "--template",
        metavar="NAME",
        help="Modules that are loaded already; see: dios template ls.",
        rich_help_panel=_LIMITS,
    ),
]
NetworkOption = Annotated[
    list[str] | None,
    typer.Option(
        "--network",
        metavar="ORIGIN",
        help="Permit HTTP requests to this origin, such as https://api.example.org; repeat for more.",
    ),
]
AuthoritiesOption = Annotated[
    Path | None,
    typer.Option(
        "--network-ca",
        metavar="FILE",
        help="Certificates of authorities to trust for https origins; default: those of this machine.",
        rich_help_panel=_NETWORK,
    ),
]
HeadersOption = Annotated[
    list[str] | None,
    typer.Option(
        "--network-header",
        metavar="ORIGIN=NAME:VARIABLE",
        help="Add this header, with the value of an environment variable, to requests outside of the session;"
        ' also "ORIGIN=Authorization:Bearer VARIABLE", and @/PATH of a file with the value for VARIABLE.',
        rich_help_panel=_NETWORK,
    ),
]
TimeOption = Annotated[
    float | None,
    typer.Option(
        "--timeout", metavar="SECONDS", parser=_seconds, help="Time of each run, or none for no limit."
    ),
]
BoundsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--bound",
        metavar="NAME=NUMBER",
        help="The most of something that a run returns, such as output_bytes=100000; repeat for more.",
        rich_help_panel=_LIMITS,
    ),
]


def given_inputs(texts: list[str] | None) -> dict[str, str]:
    """Return the paths of inputs by name; an input without a name has that of its file."""
    given: dict[str, str] = {}
    for text in texts or ():
        name, is_named, path = text.partition("=")
        if not is_named or "/" in name:
            # Without a name, or with a sign of equality in the path.
            name, path = Path(text).name, text
        if name in given:
            raise InvalidError(f"two inputs have the name {name}; choose names with --input NAME=PATH")
        given[name] = path
    return given


def given_bounds(texts: list[str] | None, default: SandboxBounds | None = None) -> SandboxBounds:
    """Return ``default`` with the bounds that texts such as ``figures=3`` name. Raise InvalidError."""
    default = default or SandboxBounds()
    given: dict[str, int] = {}
    for text in texts or ():
        name, _, number = text.partition("=")
        if name not in SandboxBounds.__struct_fields__ or not number.isdecimal():
            known = ", ".join(SandboxBounds.__struct_fields__)
            raise InvalidError(f"--bound is NAME=NUMBER, not {text!r}; the names are {known}")
        given[name] = int(number)
    return SandboxBounds(**(msgspec.structs.asdict(default) | given))

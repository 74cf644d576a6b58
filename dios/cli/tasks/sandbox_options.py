"""The options of all commands that open a sandbox: one for each argument of ``dios.Sandbox``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import typer

from dios.cli.common.options import Options, option
from dios.errors import InvalidError
from dios.lib.sandbox.bounds import SandboxBounds
from dios.lib.sandbox.network.grant import headers_from_variables

S = TypeVar("S")

_LIMITS: Final = "Limits and preparation"
_NETWORK: Final = "Its network"


def seconds_or_none(text: str | float) -> float | None:
    """Parse a number of seconds; ``none`` is no limit."""
    if text == "none":
        return None
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no number of seconds, and not none") from None


class SandboxOptions(Options):
    """The options of a sandbox."""

    inputs: list[str] | None = option(
        "-i --input [NAME=]PATH", "A file to read, as /inputs/NAME; repeat for more."
    )
    memory: str | None = option(
        "--memory SIZE", "Memory of the session, such as 512MiB; default: that of the node's tasks."
    )
    cpu_seconds: float | None = option(
        "--cpu-seconds N", "Processor time of the session; default: no limit.", section=_LIMITS
    )
    timeout: float | None = option(
        "--timeout SECONDS", "Time of each run, or none for no limit.", default=60.0, parser=seconds_or_none
    )
    bounds: list[str] | None = option(
        "--bound NAME=NUMBER",
        "The most of something that a run returns, such as output_bytes=100000; repeat for more.",
        section=_LIMITS,
    )
    template: str = option(
        "--template NAME", "Modules that are loaded already; see: dios template ls.", section=_LIMITS
    )
    packages: list[str] | None = option(
        "--packages PACKAGE",
        "Install it for the session, as in pandas==2.3; repeat for more.",
        section=_LIMITS,
    )
    wheels: str = option(
        "--wheels PLACE",
        "Install --packages from the .whl files in a folder, or in dios://GROUP/PATH.",
        section=_LIMITS,
    )
    image: str = option(
        "--image PLACE",
        "The root file system: oci-layout:FOLDER[:TAG], oci-archive:FILE[:TAG] or dios://GROUP/FILE[:TAG].",
        section=_LIMITS,
    )
    snapshot: str = option(
        "--snapshot PLACE", "Begin with the snapshot of a sandbox, dios://GROUP/NAME.", section=_LIMITS
    )
    isolation: str = option(
        "--isolation KERNEL",
        "The kernel below the code: kernel, that of the machine, or gvisor, one in a process of its own.",
        default="kernel",
        section=_LIMITS,
    )
    network: list[str] | None = option(
        "--network ORIGIN",
        "Permit HTTP requests to this origin, such as https://api.example.org; repeat for more.",
    )
    network_ca: Path | None = option(
        "--network-ca FILE",
        "Certificates of authorities to trust for https origins; default: those of this machine.",
        section=_NETWORK,
    )
    network_header: list[str] | None = option(
        "--network-header ORIGIN=NAME:VARIABLE",
        "Add this header, with the value of an environment variable, to requests outside of the session;"
        ' also "ORIGIN=Authorization:Bearer VARIABLE", and @/PATH of a file with the value for VARIABLE.',
        section=_NETWORK,
    )

    @property
    def has_programs(self) -> bool:
        """True if the sandbox has the programs of an image."""
        return bool(self.image or self.snapshot)

    def sandbox(  # type: ignore[explicit-any] # of either class of sandboxes
        self, kind: Callable[..., S], *, bounds: SandboxBounds | None = None, **more: object
    ) -> S:
        """Return a sandbox with these options, by default with these ``bounds``. Raise InvalidError."""
        return kind(
            template=self.template,
            packages=self.packages or (),
            wheels=self.wheels or None,
            image=self.image,
            snapshot=self.snapshot,
            isolation=self.isolation,
            inputs=given_inputs(self.inputs),
            memory=self.memory,
            cpu_seconds=self.cpu_seconds,
            timeout=self.timeout,
            bounds=given_bounds(self.bounds, bounds),
            network=self.network or (),
            network_ca=self.network_ca,
            network_headers=headers_from_variables(self.network_header or ()),
            **more,
        )


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

"""``dios sandbox serve`` and ``dios sandbox key``: the server for clients of sandboxes, and their keys."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import typer
from msgspec import field

from dios.cli.common.application import CommandApplication
from dios.cli.common.extras import needing_extra
from dios.cli.common.options import argument, option
from dios.cli.common.output import say, size_text, span_text, time_text
from dios.cli.common.principals import principal_of
from dios.cli.common.results import NODE_OPTION, OutputOptions
from dios.cli.common.rows import Row
from dios.errors import InvalidError
from dios.lib.amounts import memory_of

if TYPE_CHECKING:
    from dios.lib.sandbox_server.keys import KeyRecord

app: Final = CommandApplication()
key_app: Final = CommandApplication(
    no_args_is_help=True, help="The keys of the clients of `dios sandbox serve`, and their bounds."
)

PORT_DEFAULT: Final = 7490
_BY_SIGNAL: Final = 128
_SANDBOXES_MOST: Final = 1_000
_SECONDS_MOST: Final = 30 * 86_400


class SandboxKeyRow(Row, kw_only=True):
    """A key: its principal, its bounds, and the time of its creation in nanoseconds since 1970."""

    name: str
    principal: str
    sandboxes: int
    memory_bytes: int
    seconds: int
    created_ns: int = field(name="created")


class NewSandboxKeyRow(SandboxKeyRow, kw_only=True):
    """A new key with its text, which is shown once."""

    key: str


@app.command(
    epilog="\b\nExamples:\n  dios sandbox key add laptop\n  dios sandbox serve\n"
    "  dios sandbox serve --templates server.toml\n\f"
    "  dios sandbox serve --address 10.0.0.5 --host boxes.example.org --certificate cert.pem "
    "--private-key key.pem\n\n"
    "\b\nA client of E2B then needs, with the key:\n"
    f"  E2B_API_URL=http://127.0.0.1:{PORT_DEFAULT}\n  E2B_SANDBOX_URL=http://127.0.0.1:{PORT_DEFAULT}\n"
    "  E2B_API_KEY=e2b_..."
)
def serve(
    port: int = argument("[PORT]", "The port; 0 for any free one.", default=PORT_DEFAULT, min=0, max=65535),
    *,
    templates: Path | None = option(
        "--templates FILE", "What sandboxes begin with, by the names of templates; default: no image."
    ),
    address: str = option(
        "--address IP", "The address to listen on; others than loopback need TLS.", default="127.0.0.1"
    ),
    hosts: list[str] | None = option(
        "--host NAME", "A name by which clients address this machine; repeat for more."
    ),
    certificate: Path | None = option("--certificate FILE", "The certificate for TLS, with those above it."),
    private_key: Path | None = option("--private-key FILE", "Its private key."),
    node: str | None = NODE_OPTION,
) -> None:
    """Serve sandboxes over HTTP to programs with a key, until Ctrl-C, which ends all of them.

    Clients are the packages e2b and e2b-code-interpreter, without a change, and any program that sends HTTP:
    /openapi.json describes that interface. A key of `dios sandbox key add` sees its own sandboxes alone.
    """
    with needing_extra("serve", "servers of sandboxes"):
        from dios.lib.sandbox_server import serving  # noqa: PLC0415 - an optional dependency
    from dios.lib.sandbox_server.keys import KeyFile  # noqa: PLC0415 - few commands need it
    from dios.lib.sandbox_server.templates import PLAIN, read_settings  # noqa: PLC0415 - the same

    settings = PLAIN if templates is None else read_settings(templates)
    keys = KeyFile()
    if not keys.keys():
        say("there is no key yet: `dios sandbox key add NAME` makes one, also while this runs")
    place = serving.Place(address, port, tuple(hosts or ()), certificate, private_key)
    scheme = "http" if certificate is None else "https"

    def listening(bound: int) -> None:
        shown = f"[{address}]" if ":" in address else address
        say(f"serving sandboxes at {scheme}://{shown}:{bound}; Ctrl-C ends all of them")

    raise typer.Exit(_BY_SIGNAL + serving.serve(settings, place, node, keys, listening))


@key_app.command(
    examples="dios sandbox key add laptop\ndios sandbox key add ci --user uid:1000 --sandboxes 16\n"
    "dios sandbox key add lab --group students --memory 8GiB --time 600",
    json=NewSandboxKeyRow,
)
def add(
    name: str = argument("NAME", "A name for the key: small letters, digits and '-'."),
    *,
    user: str = option("--user PRINCIPAL", "Count its sandboxes for this user: a name, or uid:1000."),
    group: str = option("--group NAME", "Count its sandboxes for this group of people."),
    sandboxes: int = option(
        "--sandboxes N",
        "The most at once, of all keys of the user or group.",
        default=8,
        min=1,
        max=_SANDBOXES_MOST,
    ),
    memory: str = option("--memory SIZE", "The memory of all of them together.", default="4GiB"),
    life: int = option(
        "--time SECONDS",
        "The longest life of a sandbox from a call on.",
        default=3600,
        min=1,
        max=_SECONDS_MOST,
    ),
    output: OutputOptions,
) -> None:
    """Make a key for clients of the server, and show it once: only a digest of it is stored.

    Its bounds count the sandboxes of all keys of the same user or group; without one those of the key alone.
    For the node, all sandboxes of the server are those of the user who runs it.
    """
    from dios.lib.sandbox_server.keys import NAME, KeyBounds, KeyFile  # noqa: PLC0415 - few commands need it

    if user and group:
        raise InvalidError("a key is of a user or of a group: give --user or --group")
    principal = principal_of(user) if user else ""
    if user and not principal:
        raise InvalidError(f"there is no user {user!r} here: give a name of this machine, or uid:1000")
    if group:
        if not NAME.fullmatch(group):
            raise InvalidError(f"a group's name has small letters, digits and '-', not {group!r}")
        principal = f"group:{group}"
    bounds = KeyBounds(sandboxes=sandboxes, memory_bytes=memory_of(memory), seconds=life)
    keys = KeyFile()
    secret = keys.add(name, principal, bounds)
    row = NewSandboxKeyRow.of(keys.keys()[name], key=secret, **msgspec.structs.asdict(bounds))
    output.print_row(row, "this is the only time that the key is shown", facts={"KEY": secret})


@key_app.command("ls", examples="dios sandbox key ls\ndios sandbox key ls --json", json=[SandboxKeyRow])
def list_keys(output: OutputOptions) -> None:
    """List the keys of the server, without their texts."""
    from dios.lib.sandbox_server.keys import KeyFile  # noqa: PLC0415 - few commands need it

    output.print_rows(
        KeyFile().keys().values(),
        lambda record: {
            "NAME": record.name,
            "PRINCIPAL": record.principal,
            "SANDBOXES": record.bounds.sandboxes,
            "MEMORY": size_text(record.bounds.memory_bytes),
            "TIME": span_text(record.bounds.seconds * 1_000_000_000),
            "CREATED": time_text(record.created_ns),
        },
        described=_row,
        empty="there is no key; `dios sandbox key add NAME` makes one",
    )


@key_app.command("rm", examples="dios sandbox key rm laptop", json=[SandboxKeyRow])
def remove(
    name: str = argument("NAME", "The name of the key."),
    *,
    output: OutputOptions,
) -> None:
    """Revoke a key at once: no request can use it any more, and its sandboxes end within a second or so."""
    from dios.lib.sandbox_server.keys import KeyFile  # noqa: PLC0415 - few commands need it

    keys = KeyFile()
    former = keys.keys().get(name)
    keys.remove(name)
    output.print_row([] if former is None else [_row(former)], f"key {name} is revoked")


def _row(record: KeyRecord) -> SandboxKeyRow:
    return SandboxKeyRow.of(record, **msgspec.structs.asdict(record.bounds))

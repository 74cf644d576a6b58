"""``dios-node init``, ``dios-node invite``, and joining at the first ``dios-node start``."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, TypedDict

import typer

from dios.cli.common.application import CommandApplication
from dios.cli.common.output import JsonOption, counted, facts, reporting, say, waiting, write_json
from dios.cli.nodes.setting_options import seconds_of
from dios.client.locate import resolve_node
from dios.client.plain_text import plain
from dios.errors import UnreachableError
from dios.node.addresses import checked_address
from dios.node.daemon import StartError, first_error
from dios.node.settings import Settings, SettingsError, load

VALID_DEFAULT: Final = "1h"

app: Final = CommandApplication()


class InvitationRow(TypedDict):
    """An invitation, which is secret, and the line to type on the machine that joins."""

    token: str
    address: str
    join: str


class MadeClusterRow(InvitationRow):
    """A new cluster with its first node."""

    name: str
    cluster: str
    data: str


InvitationOption = Annotated[
    str,
    typer.Option(
        "--invitation",
        metavar="TEXT",
        help="The invitation to join with. All users of this machine can see it while the command runs; use "
        "--invitation-file or DIOS_TOKEN on shared machines.",
    ),
]
InvitationFileOption = Annotated[
    Path | None,
    typer.Option("--invitation-file", metavar="FILE", help="A file with the invitation to join with."),
]
JoinOption = Annotated[
    str,
    typer.Option(
        "--join",
        metavar="HOST:PORT",
        help="Join the cluster of the node at this address. Later starts remember it.",
    ),
]

ValidOption = Annotated[
    str, typer.Option("--valid", metavar="SPAN", help="How long the invitation is valid: 10min, 1h, 2d.")
]
UsesOption = Annotated[
    int, typer.Option("--uses", metavar="N", min=1, help="The number of machines that may join with it.")
]


@app.command(
    epilog="\b\nExamples:\n  dios-node init --data ./node0 --listen 10.0.0.1:7400\n"
    "  dios-node init --data /var/lib/dios --listen 0.0.0.0:7400 \\\n      --advertise n1.example:7400"
)
def init(
    *,
    data: Annotated[
        Path,
        typer.Option("--data", metavar="DIR", help="The first node's data directory; created if missing."),
    ],
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="The address for other nodes.")
    ] = "",
    advertise: Annotated[
        str, typer.Option("--advertise", metavar="HOST:PORT", help="The address that others get instead.")
    ] = "",
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="The node's name; default: the machine's name.")
    ] = "",
    rack: Annotated[str, typer.Option("--rack", metavar="NAME", help="The node's fault domain.")] = "",
    valid: ValidOption = VALID_DEFAULT,
    uses: UsesOption = 1,
    as_json: JsonOption = False,
) -> None:
    """Make a new cluster: its authority, and its first node's identity in DIR. Nothing is started.

    The command prints the line to type on the next machine. The line contains an invitation, which is secret
    and by default works once within an hour; `dios-node invite` makes more. The settings given here are saved
    in DIR/node.toml.
    """
    with reporting("dios-node init", as_json=as_json):
        # Imported late, here and below: certificates take a tenth of a second, which most commands save.
        from dios.node import cluster  # noqa: PLC0415 - see above

        chosen = {"listen": listen, "advertise": advertise, "name": name, "rack": rack}
        settings = load(data, flags={key: value or None for key, value in chosen.items()})
        valid_s = seconds_of(valid, "--valid")
        own = cluster.create(settings)
        token, address = cluster.issue(settings.data, uses=uses, valid_s=valid_s)
        join = cluster.join_command(address, token)
        if as_json:
            row: MadeClusterRow = {
                "name": own.name,
                "cluster": own.cluster.hex(),
                "data": str(settings.data),
                "address": address,
                "token": token,
                "join": join,
            }
            write_json(row)
            return
        facts(
            [
                ("cluster", f"made, {own.cluster.hex()[:16]}"),
                ("node", own.name + (f", rack {settings.rack}" if settings.rack else "")),
                ("data", str(settings.data)),
                ("address", address),
            ]
        )
        _tell_next(cluster.advice(settings), data, f"{_machines(uses)} within {valid}")
        typer.echo(join)


def _tell_next(advice: str, data: Path, machines: str) -> None:
    if advice:
        say(advice)
    say(f"next, here:  dios-node start --data {data} --detach")
    say(f"next, on {machines} (its invitation is secret):")


def _machines(uses: int) -> str:
    return "one more machine" if uses == 1 else f"up to {counted(uses, 'more machine')}"


@app.command(
    epilog="\b\nExamples:\n  dios-node invite\n  dios-node invite --data ./node0 --valid 10min --uses 5\n"
    "  dios-node invite --json | jq -r .token > invitation; chmod 600 invitation"
)
def invite(
    *,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="DIR",
            help="A node of the cluster; default: the default node. It may be stopped.",
        ),
    ] = None,
    valid: ValidOption = VALID_DEFAULT,
    uses: UsesOption = 1,
    as_json: JsonOption = False,
) -> None:
    """Make an invitation with which a machine can join the cluster, and print the line to type there.

    The machine joins at the node that made the invitation, which must be running; that node counts the uses,
    and measures the time with its own clock. An invitation is secret. It identifies the cluster's authority,
    so that a machine cannot join the wrong cluster.
    """
    with reporting("dios-node invite", as_json=as_json):
        from dios.node import cluster  # noqa: PLC0415 - see init

        folder = resolve_node(None).resolve().parent if data is None else data
        text, address = cluster.issue(folder, uses=uses, valid_s=seconds_of(valid, "--valid"))
        join = cluster.join_command(address, text)
        if as_json:
            issued: InvitationRow = {"token": text, "address": address, "join": join}
            write_json(issued)
            return
        say(f"on {_machines(uses)}, within {valid}; the invitation is secret:")
        typer.echo(join)


def check_member(settings: Settings) -> None:
    """Raise SettingsError or DamagedError if a node that has joined cannot start with these settings."""
    from dios.node import cluster  # noqa: PLC0415 - see init
    from dios.transport.identity import identity  # noqa: PLC0415 - the same

    own = identity.load(settings.data)
    if own is not None:
        cluster.check(settings, own)


def join_first(
    data: Path,
    *,
    config: Path | None,
    flags: Mapping[str, str],
    address: str,
    token: str,
    token_file: Path | None,
) -> dict[str, str]:
    """Join before the first start. Return the settings to add to the node's flags.

    A node that has joined this cluster already just starts. Raises the errors of ``transport.joining.join``.
    """
    try:
        checked = checked_address(address, advertised=True)
    except ValueError as error:
        raise SettingsError(f"--join must be {error}, not {address!r}") from None
    settings = load(data, config=config, flags=flags)
    if settings.identity.exists() and not token and token_file is None:
        return {}
    # Imported late: only the start that joins needs certificates and an event loop.
    import trio  # noqa: PLC0415 - see above

    from dios.node import cluster  # noqa: PLC0415 - the same
    from dios.transport.identity import joining, tokens  # noqa: PLC0415 - the same

    text = cluster.read_token(text=token, file=token_file)
    wanted = cluster.prepare_join(settings, checked, tokens.read(text))
    if wanted is None:
        say(
            f"{settings.data} already belongs to a node of this cluster; the invitation is not used. "
            "A forgotten node joins again with an empty --data directory."
        )
        return {}
    with waiting(f"joining the cluster at {plain(checked)}"):
        try:
            trio.run(functools.partial(joining.join, checked, text, name=wanted.name, directory=wanted.data))
        except BaseExceptionGroup as several:
            raise first_error(several) from None
        except UnreachableError as error:
            raise StartError(
                f"{error.message}. Start the node that made the invitation, or give its address with --join."
            ) from None
    cluster.joined(wanted, checked)
    say(f"{wanted.name} has joined the cluster and listens on {wanted.listen}")
    if cluster.advice(wanted):
        say(cluster.advice(wanted))
    return {"listen": wanted.listen}

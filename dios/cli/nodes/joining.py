"""``dios-node init``, ``dios-node token`` and the joining half of ``dios-node start``.

Not for: what an identity is (``dios.transport.identity.identity``), or looking at a cluster
(``dios.cli.nodes.members``).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import typer

from dios.cli.common.output import JsonOption, facts, plain, reporting, say, waiting, write_json
from dios.cli.nodes.setting_options import seconds_of
from dios.client.locate import resolve_node
from dios.errors import UnreachableError
from dios.node.addresses import checked_address
from dios.node.daemon import StartError, first_error
from dios.node.settings import Settings, SettingsError, load

VALID_DEFAULT: Final = "1h"

app: Final = typer.Typer(rich_markup_mode=None)

TokenOption = Annotated[
    str,
    typer.Option(
        "--token",
        metavar="TEXT",
        help="The token to join with. Every user of this machine can see it while the command runs: where "
        "there are others, --token-file or DIOS_TOKEN is better.",
    ),
]
TokenFileOption = Annotated[
    Path | None, typer.Option("--token-file", metavar="FILE", help="A file with the token to join with.")
]
JoinOption = Annotated[
    str,
    typer.Option(
        "--join",
        metavar="HOST:PORT",
        help="Become a node of the cluster that this address belongs to. Later starts remember it.",
    ),
]

ValidOption = Annotated[
    str, typer.Option("--valid", metavar="SPAN", help="How long the token works: 10min, 1h, 2d.")
]
UsesOption = Annotated[
    int, typer.Option("--uses", metavar="N", min=1, help="How many machines may join with it.")
]


@app.command(
    epilog="\b\nExamples:\n  dios-node init --data ./node0 --listen 10.0.0.1:7400\n"
    "  dios-node init --data /var/lib/dios --listen 0.0.0.0:7400 \\\n      --advertise n1.example:7400"
)
def init(
    *,
    data: Annotated[
        Path, typer.Option("--data", metavar="DIR", help="The first node's data directory; made if missing.")
    ],
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where the other nodes will reach it.")
    ] = "",
    advertise: Annotated[
        str, typer.Option("--advertise", metavar="HOST:PORT", help="What it tells them instead.")
    ] = "",
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="What you call it; default: the machine's name.")
    ] = "",
    rack: Annotated[
        str, typer.Option("--rack", metavar="NAME", help="The fault domain that it stands in.")
    ] = "",
    valid: ValidOption = VALID_DEFAULT,
    uses: UsesOption = 1,
    as_json: JsonOption = False,
) -> None:
    """Make a new cluster: its authority, and its first node's identity in DIR. Nothing is started.

    Prints the line to type on the next machine. It holds a token, which is a secret, and works once and for
    an hour unless you say otherwise; `dios-node token` makes more. What you choose here is kept in
    DIR/node.toml.
    """
    with reporting("dios-node init", as_json=as_json):
        # Late here and below: certificates take a tenth of a second that most commands need not spend.
        from dios.node import cluster  # noqa: PLC0415 - see above

        chosen = {"listen": listen, "advertise": advertise, "name": name, "rack": rack}
        settings = load(data, flags={key: value or None for key, value in chosen.items()})
        valid_s = seconds_of(valid, "--valid")
        own = cluster.create(settings)
        token, address = cluster.issue(settings.data, uses=uses, valid_s=valid_s)
        join = cluster.join_command(address, token)
        if as_json:
            write_json(
                {
                    "name": own.name,
                    "cluster": own.cluster.hex(),
                    "data": str(settings.data),
                    "address": address,
                    "token": token,
                    "join": join,
                }
            )
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
    say(f"next, on {machines} (the token in it is a secret):")


def _machines(uses: int) -> str:
    return "one more machine" if uses == 1 else f"up to {uses} more machines"


@app.command(
    epilog="\b\nExamples:\n  dios-node token\n  dios-node token --data ./node0 --valid 10min --uses 5\n"
    "  dios-node token --json | jq -r .token > token; chmod 600 token"
)
def token(
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
    """Make a token with which a machine can join the cluster, and print the line to type there.

    The machine joins at the node that made the token, which must run then; it alone counts the uses, by its
    own clock. A token is a secret. It pins the cluster's authority: a machine cannot join the wrong one.
    """
    with reporting("dios-node token", as_json=as_json):
        from dios.node import cluster  # noqa: PLC0415 - see init

        folder = resolve_node(None).resolve().parent if data is None else data
        text, address = cluster.issue(folder, uses=uses, valid_s=seconds_of(valid, "--valid"))
        join = cluster.join_command(address, text)
        if as_json:
            write_json({"token": text, "address": address, "join": join})
            return
        say(f"on {_machines(uses)}, within {valid}; it is a secret:")
        typer.echo(join)


def check_member(settings: Settings) -> None:
    """Whether a node that has joined can start like this; raises SettingsError, DamagedError."""
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
    """Join before the first start; what the node is to be told beside its flags.

    A node that has joined this cluster already only starts. Raises what ``transport.joining.join`` raises.
    """
    try:
        checked = checked_address(address, advertised=True)
    except ValueError as error:
        raise SettingsError(f"--join must be {error}, not {address!r}") from None
    settings = load(data, config=config, flags=flags)
    if settings.identity.exists() and not token and token_file is None:
        return {}
    # Late: certificates and an event loop, for the one start of many that joins.
    import trio  # noqa: PLC0415 - see above

    from dios.node import cluster  # noqa: PLC0415 - the same
    from dios.transport.identity import joining, tokens  # noqa: PLC0415 - the same

    text = cluster.read_token(text=token, file=token_file)
    wanted = cluster.prepare_join(settings, checked, tokens.read(text))
    if wanted is None:
        say(
            f"{settings.data} is a node of this cluster already, and the token is not used; "
            "a node that was forgotten joins again with an empty --data"
        )
        return {}
    with waiting(f"joining the cluster at {plain(checked)}"):
        try:
            trio.run(functools.partial(joining.join, checked, text, name=wanted.name, directory=wanted.data))
        except BaseExceptionGroup as several:
            raise first_error(several) from None
        except UnreachableError as error:
            raise StartError(
                f"{error.message}; start the node that made the token, or say with --join where it listens"
            ) from None
    cluster.joined(wanted, checked)
    say(f"{wanted.name} is a node of the cluster now, and listens on {wanted.listen}")
    if cluster.advice(wanted):
        say(cluster.advice(wanted))
    return {"listen": wanted.listen}

"""``dios-node init``, ``dios-node invite``, and joining at the first ``dios-node start``."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import typer

from dios.cli.common.application import CommandApplication
from dios.cli.common.options import option
from dios.cli.common.output import counted, say, waiting
from dios.cli.common.results import OutputOptions
from dios.cli.common.rows import Row
from dios.cli.nodes.setting_options import seconds_of
from dios.cli.nodes.target import data_or_default
from dios.client.plain_text import plain
from dios.errors import UnreachableError
from dios.node.addresses import checked_address
from dios.node.daemon import StartError
from dios.node.settings import Settings, SettingsError, load
from dios.wire.node_roles import ROLE_WORDS, NodeRole, roles_of

VALID_DEFAULT: Final = "1h"

app: Final = CommandApplication()


class InvitationRow(Row):
    """An invitation, which is secret, and the line to type on the machine that joins."""

    token: str
    address: str
    join: str


class MadeClusterRow(InvitationRow, kw_only=True):
    """A new cluster with its first node."""

    name: str
    cluster: str
    data: str


VALID_OPTION: Final[str] = option(
    "--valid SPAN", "How long the invitation is valid: 10min, 1h, 2d.", default=VALID_DEFAULT
)
USES_OPTION: Final[int] = option(
    "--uses N", "The number of machines that may join with it.", default=1, min=1
)

ROLE_OPTION: Final[str] = option(
    "--role ROLES",
    f"The roles of the machine, with commas between them: {', '.join(ROLE_WORDS)}.",
    default=str(NodeRole.MEMBER),
)


@app.command(
    examples="dios-node init --data ./node0 --listen 10.0.0.1:7400\n"
    "dios-node init --data /var/lib/dios --listen 0.0.0.0:7400 \\\n    --advertise n1.example:7400",
    json=MadeClusterRow,
)
def init(
    *,
    data: Path = option("--data DIR", "The first node's data directory; created if missing."),
    listen: str = option("--listen HOST:PORT", "The address for other nodes."),
    advertise: str = option("--advertise HOST:PORT", "The address that others get instead."),
    name: str = option("--name NAME", "The node's name; default: the machine's name."),
    rack: str = option("--rack NAME", "The node's fault domain."),
    root_key: Path | None = option(
        "--root-key FILE",
        "A new file for the key of the cluster's root, to be kept offline: with it `dios-node authorize` "
        "makes any node an authority, if all are lost. Without it the key is forgotten.",
    ),
    valid: str = VALID_OPTION,
    uses: int = USES_OPTION,
    output: OutputOptions,
) -> None:
    """Make a new cluster: its root, and its first node's identity in DIR. Nothing is started.

    The command prints the line to type on the next machine. The line contains an invitation, which is secret
    and by default works once within an hour; `dios-node invite` makes more. The settings given here are saved
    in DIR/node.toml. This node is an authority: it alone admits others and renews their certificates, until
    you invite a second one with `dios-node invite --role authority`.
    """
    # Imported late, here and below: certificates take a tenth of a second, which most commands save.
    from dios.node import cluster  # noqa: PLC0415 - see above

    chosen = {"listen": listen, "advertise": advertise, "name": name, "rack": rack}
    settings = load(data, flags={key: value or None for key, value in chosen.items()})
    valid_s = seconds_of(valid, "--valid")
    own = cluster.create(settings, root_key)
    token, address = cluster.issue(settings.data, uses=uses, valid_s=valid_s)
    join = cluster.join_command(address, token)
    keep = f"move {root_key} to a place that is not on this machine, and keep it secret"
    output.print_row(
        MadeClusterRow(
            token=token,
            address=address,
            join=join,
            name=own.name,
            cluster=own.cluster.hex(),
            data=str(settings.data),
        ),
        *filter(None, [cluster.advice(settings)]),
        *(() if root_key is None else (keep,)),
        f"next, here:  dios-node start --data {data} --detach",
        f"next, on {_machines(uses)} within {valid} (its invitation is secret):",
        facts={
            "cluster": f"made, {own.cluster.hex()[:16]}",
            "node": own.name + (f", rack {settings.rack}" if settings.rack else ""),
            "data": str(settings.data),
            "address": address,
        },
    )
    if not output.as_json:
        typer.echo(join)


def _machines(uses: int) -> str:
    return "one more machine" if uses == 1 else f"up to {counted(uses, 'more machine')}"


@app.command(
    examples="dios-node invite\ndios-node invite --data ./node0 --valid 10min --uses 5\n"
    "dios-node invite --role keeper,scheduler\n"
    "dios-node invite --json | jq -r .token > invitation; chmod 600 invitation",
    json=InvitationRow,
)
def invite(
    *,
    data: Path | None = option(
        "--data DIR", "A node of the cluster; default: the default node. It may be stopped."
    ),
    valid: str = VALID_OPTION,
    uses: int = USES_OPTION,
    role: str = ROLE_OPTION,
    output: OutputOptions,
) -> None:
    """Make an invitation with which a machine can join the cluster, and print the line to type there.

    The machine joins at the node that made the invitation, which must be running; that node counts the uses,
    and measures the time with its own clock. An invitation is secret. It identifies the cluster's root,
    so that a machine cannot join the wrong cluster. Use --role worker for machines that only compute: a
    thief of one of them can do less to the others. Only an authority makes invitations: the first node of the
    cluster, and those that joined by --role authority.
    """
    from dios.node import cluster  # noqa: PLC0415 - see init

    folder = data_or_default(data)
    valid_s = seconds_of(valid, "--valid")
    text, address = cluster.issue(folder, uses=uses, valid_s=valid_s, role=roles_of(role))
    join = cluster.join_command(address, text)
    output.print_row(
        InvitationRow(text, address, join),
        f"on {_machines(uses)}, within {valid}; the invitation is secret:",
    )
    if not output.as_json:
        typer.echo(join)


class AuthorityRow(Row):
    """A node that became an authority, and its cluster."""

    name: str
    cluster: str
    data: str


@app.command(
    examples="dios-node authorize --data ./node2 --root-key /media/key/cluster.key", json=AuthorityRow
)
def authorize(
    *,
    data: Path = option("--data DIR", "The data directory of a stopped node of the cluster."),
    root_key: Path = option(
        "--root-key FILE", "The key that `dios-node init --root-key` wrote, readable by you alone."
    ),
    output: OutputOptions,
) -> None:
    """Make a node an authority, with the key of its cluster's root: the way back if all authorities are lost.

    The node keeps its id, its name and its objects. Start it afterwards: it admits nodes, and the others
    renew their certificates at it, also those whose certificates are over. Then take the key away again.
    """
    from dios.node import cluster  # noqa: PLC0415 - see init

    own = cluster.authorize(load(data), root_key)
    output.print_row(
        AuthorityRow(own.name, own.cluster.hex(), str(data)),
        f"next: dios-node start --data {data} --detach, and take {root_key} away from this machine",
        facts={"node": f"{own.name}, an authority of cluster {own.cluster.hex()[:16]}"},
    )


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
        except UnreachableError as error:
            raise StartError(
                f"{error.message}. Start the node that made the invitation, or give its address with --join."
            ) from None
    cluster.joined(wanted, checked)
    say(f"{wanted.name} has joined the cluster and listens on {wanted.listen}")
    if cluster.advice(wanted):
        say(cluster.advice(wanted))
    return {"listen": wanted.listen}

"""``dios-node trust``: the foreign clusters that a node trusts at its border (ADR 0101)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypedDict

import typer

from dios.cli.common.application import CommandApplication
from dios.cli.common.output import JsonOption, facts, reporting, say, table, write_json
from dios.client.locate import resolve_node
from dios.errors import InvalidError

if TYPE_CHECKING:
    from dios.transport.identity.identity import Identity

app: Final = CommandApplication(
    no_args_is_help=True,
    help="The foreign clusters that this node trusts at its border, for sealed tokens and nothing else.",
)

DataOption = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="The node's data directory; default: the default node."),
]


class TrustedRow(TypedDict):
    """A trusted cluster: its name here, the digest of its authority, and the address of its border or ""."""

    name: str
    cluster: str
    address: str


@app.command(
    epilog="\b\nExamples:\n  dios-node trust add lab --authority lab.pem --address lab.example:7500\n"
    "  dios-node trust add lab --authority lab.pem --data ./node0     (they use your tokens, you not theirs)"
)
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Your name for the cluster.")],
    *,
    authority: Annotated[
        Path,
        typer.Option(
            "--authority", metavar="FILE", help="The file identity/authority.pem of a node of that cluster."
        ),
    ],
    address: Annotated[
        str, typer.Option("--address", metavar="HOST:PORT", help="The border of one of its nodes.")
    ] = "",
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Trust another cluster at the border of this node: its users may use tokens that this cluster issued.

    With an address, users of this node may use tokens that the other cluster issued. The other side must
    trust this cluster as well. The certificate is no secret, but take it from somebody whom you believe:
    compare the printed digest. A running node obeys at once.
    """
    with reporting("dios-node trust add", as_json=as_json):
        from dios.node.addresses import checked_address  # noqa: PLC0415 - as below
        from dios.transport.identity.trusted_clusters import add_trusted  # noqa: PLC0415 - loads TLS

        checked = checked_address(address, advertised=True) if address else ""
        trusted = add_trusted(_own(data), name, authority.read_bytes(), checked)
        if as_json:
            write_json(TrustedRow(name=name, cluster=trusted.cluster.hex(), address=trusted.address))
            return
        facts(
            [
                ("cluster", name),
                ("authority", trusted.cluster.hex()),
                ("border", trusted.address or "unknown"),
            ]
        )


@app.command("ls", epilog="\b\nExamples:\n  dios-node trust ls\n  dios-node trust ls --data ./node0 --json")
def list_trusted(*, data: DataOption = None, as_json: JsonOption = False) -> None:
    """List the clusters that this node trusts at its border, and show its own identity."""
    with reporting("dios-node trust ls", as_json=as_json):
        from dios.transport.identity.trusted_clusters import trusted_clusters  # noqa: PLC0415 - as above

        own = _own(data)
        rows = [
            (trusted.name, trusted.cluster.hex(), trusted.address)
            for trusted in trusted_clusters(own).values()
        ]
        if as_json:
            write_json([TrustedRow(name=name, cluster=mark, address=address) for name, mark, address in rows])
            return
        say(f"this cluster is {own.cluster.hex()}; its certificate is {own.folder / 'authority.pem'}")
        if rows:
            table(("NAME", "CLUSTER", "BORDER"), rows)
        else:
            say("no other cluster is trusted; next: dios-node trust add NAME --authority FILE")


@app.command("rm", epilog="\b\nExamples:\n  dios-node trust rm lab")
def remove(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Your name for the cluster.")],
    *,
    data: DataOption = None,
) -> None:
    """Trust a cluster no longer. A running node refuses its next call."""
    with reporting("dios-node trust rm", as_json=False):
        from dios.transport.identity.trusted_clusters import remove_trusted  # noqa: PLC0415 - as above

        remove_trusted(_own(data), name)


def _own(data: Path | None) -> Identity:
    from dios.transport.identity import identity  # noqa: PLC0415 - as above

    folder = resolve_node(None).resolve().parent if data is None else data
    own = identity.load(folder)
    if own is None:
        raise InvalidError(
            f"the node in {folder} is in no cluster, so it has no border and trusts nobody there"
        )
    return own

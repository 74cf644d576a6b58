"""``dios-node trust``: the foreign clusters that a node trusts at its border (ADR 0101)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from dios.cli.common.application import CommandApplication
from dios.cli.common.options import argument, option
from dios.cli.common.output import say
from dios.cli.common.results import OutputOptions
from dios.cli.common.rows import Row
from dios.cli.nodes.target import DATA_OPTION, data_or_default
from dios.errors import InvalidError

if TYPE_CHECKING:
    from dios.transport.identity.identity import Identity

app: Final = CommandApplication(
    no_args_is_help=True,
    help="The foreign clusters that this node trusts at its border, for sealed tokens and nothing else.",
)


class TrustedRow(Row):
    """A trusted cluster: its name here, the digest of its root, and the address of its border or ""."""

    name: str
    cluster: str
    address: str


@app.command(
    examples="dios-node trust add lab --authority lab.pem --address lab.example:7500\n"
    "dios-node trust add lab --authority lab.pem --data ./node0     (they use your tokens, you not theirs)",
    json=TrustedRow,
)
def add(
    name: str = argument("NAME", "Your name for the cluster."),
    *,
    authority: Path = option(
        "--authority FILE", "The file identity/authority.pem of a node of that cluster."
    ),
    address: str = option("--address HOST:PORT", "The border of one of its nodes."),
    data: Path | None = DATA_OPTION,
    output: OutputOptions,
) -> None:
    """Trust another cluster at the border of this node: its users may use tokens that this cluster issued.

    With an address, users of this node may use tokens that the other cluster issued. The other side must
    trust this cluster as well. The certificate is no secret, but take it from somebody whom you believe:
    compare the printed digest. A running node obeys at once.
    """
    from dios.node.addresses import checked_address  # noqa: PLC0415 - as below
    from dios.transport.identity.trusted_clusters import add_trusted  # noqa: PLC0415 - loads TLS

    checked = checked_address(address, advertised=True) if address else ""
    trusted = add_trusted(_own(data), name, authority.read_bytes(), checked)
    output.print_row(
        TrustedRow(name, trusted.cluster.hex(), trusted.address),
        facts={
            "cluster": name,
            "authority": trusted.cluster.hex(),
            "border": trusted.address or "unknown",
        },
    )


@app.command("ls", examples="dios-node trust ls\ndios-node trust ls --data ./node0 --json", json=[TrustedRow])
def list_trusted(*, data: Path | None = DATA_OPTION, output: OutputOptions) -> None:
    """List the clusters that this node trusts at its border, and show its own identity."""
    from dios.transport.identity.trusted_clusters import trusted_clusters  # noqa: PLC0415 - as above

    own = _own(data)
    if not output.as_json:
        say(f"this cluster is {own.cluster.hex()}; its certificate is {own.folder / 'authority.pem'}")
    output.print_rows(
        [
            TrustedRow(known.name, known.cluster.hex(), known.address)
            for known in trusted_clusters(own).values()
        ],
        lambda row: {"NAME": row.name, "CLUSTER": row.cluster, "BORDER": row.address},
        empty="no other cluster is trusted; next: dios-node trust add NAME --authority FILE",
    )


@app.command("rm", examples="dios-node trust rm lab")
def remove(
    name: str = argument("NAME", "Your name for the cluster."), *, data: Path | None = DATA_OPTION
) -> None:
    """Trust a cluster no longer. A running node refuses its next call."""
    from dios.transport.identity.trusted_clusters import remove_trusted  # noqa: PLC0415 - as above

    remove_trusted(_own(data), name)


def _own(data: Path | None) -> Identity:
    from dios.transport.identity import identity  # noqa: PLC0415 - as above

    folder = data_or_default(data)
    own = identity.load(folder)
    if own is None:
        raise InvalidError(
            f"the node in {folder} is in no cluster, so it has no border and trusts nobody there"
        )
    return own

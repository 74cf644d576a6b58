"""The machines of a cluster that ``dios up`` starts and ``dios down`` stops: their kinds and options."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dios.cli.common.options import Options, option
from dios.errors import InvalidError

HERE: Final = "a cluster on this machine"
COMPOSE: Final = "--compose"
HOSTS: Final = "--hosts"
SLURM: Final = "--on slurm"
KUBERNETES: Final = "--on kubernetes"
_FOR_ALL_NODES: Final = {"--nodes", "--delete", "settings"}
_OPTIONS: Final = {
    HERE: {*_FOR_ALL_NODES, "--racks", "--dir"},
    COMPOSE: {"--delete"},
    HOSTS: {
        *("--racks", "--prefix", "--port", "--network", "--extras", "--wheelhouse", "--lock", "--release"),
        *("--signers", "--ssh", "--delete", "settings"),
    },
    SLURM: {*_FOR_ALL_NODES, "--dir", "--port", "--sbatch"},
    KUBERNETES: {*_FOR_ALL_NODES, "--namespace", "--image", "--storage"},
}
"""The options that have a meaning for each kind."""


class MachineOptions(Options):
    """The machines of a cluster."""

    directory: Path | None = option(
        "--dir DIR", "Directory of its data; default: ~/.local/state/dios/cluster."
    )
    keep: bool = option("--keep", "No effect: data are kept unless --delete is given.", hidden=True)
    """Accepted for one more release."""
    as_compose: bool = option("--compose", "Use containers: cluster/compose.yaml and Docker Compose.")
    hosts: str = option("--hosts HOST,…", "Use these machines over ssh, each as [NAME=]HOST[/RACK].")
    on: str = option("--on SYSTEM", "Use the machines of a system: slurm or kubernetes.")

    def mode(self, **settings: object) -> str:
        """Return the kind of machines.

        Raise InvalidError for two kinds, an unknown one, and an option without a meaning for it.
        """
        system = f"--on {self.on}"
        if self.on and system not in _OPTIONS:
            raise InvalidError(f"--on must be slurm or kubernetes, not {self.on!r}")
        chosen = [HOSTS] * bool(self.hosts) + [system] * bool(self.on) + [COMPOSE] * self.as_compose
        if len(chosen) > 1:
            raise InvalidError(f"{' and '.join(chosen)} exclude each other. Choose one.")
        mode = chosen[0] if chosen else HERE
        given = self.given().keys() - {"--keep", "--hosts", "--on", "--compose"}
        given |= {name for name, value in settings.items() if value}
        if foreign := [name for name in self.given() | settings if name in given - _OPTIONS[mode]]:
            why = ": the file has the nodes and their settings" if mode == COMPOSE else ""
            raise InvalidError(f"{', '.join(foreign)}: without a meaning for {mode}{why}. Leave it out.")
        return mode


class SshOptions(MachineOptions, section="With --hosts"):
    """The options of other machines."""

    prefix: str = option(
        "--prefix DIR",
        "With --hosts: the directory there; default: ~/.local/share/dios, of root /opt/dios.",
    )
    ssh: str = option("--ssh COMMAND", "With --hosts: the ssh client, like 'ssh -F FILE'.")


class ClusterOptions(SshOptions, section="With --on"):
    """The options of `dios up` and `dios down`."""

    namespace: str = option("--namespace NAME", "With --on kubernetes: the namespace; default: dios.")


class _HostOptions(Options, section="With --hosts"):
    port: int | None = option(
        "--port N",
        "With --hosts and --on slurm: the port of each node; default: 7400.",
        min=1,
        max=65_535,
    )
    network: str = option(
        "--network NET",
        "With --hosts: nodes use their addresses in this network, like 10.1.0.0/16; default: the "
        "addresses that ssh reaches.",
    )
    extras: str | None = option(
        "--extras NAMES", "With --hosts: install these extras; default: cluster; or none."
    )
    wheelhouse: Path | None = option(
        "--wheelhouse DIR", "With --hosts: take dependencies from these wheels, not from the index."
    )
    lock: str | None = option(
        "--lock FILE",
        "With --hosts: dependencies have the versions and hashes in this file; default: those of this "
        "version, unless --wheelhouse is given; or none.",
    )
    release: Path | None = option(
        "--release DIR", "With --hosts: install the wheel of this release, if its signature is valid."
    )
    signers: Path | None = option(
        "--signers FILE", "With --release: the keys that may sign it, as OpenSSH's allowed_signers."
    )


class _SystemOptions(Options, section="With --on"):
    sbatch: str = option(
        "--sbatch OPTIONS",
        "With --on slurm: more options for sbatch, like '--time=8:00:00 --cpus-per-task=8'.",
    )
    image: str = option("--image IMAGE", "With --on kubernetes: the image of a node.")
    storage: str = option("--storage SIZE", "With --on kubernetes: the volume of a node; default: 10Gi.")


class UpOptions(ClusterOptions, _HostOptions, _SystemOptions):
    """The options of `dios up`."""

    nodes: int | None = option("-n --nodes N", "Number of nodes; default: 3.", min=1)
    racks: int = option("--racks N", "Spread the nodes over N racks.", default=0, min=0)

"""``dios kernel``: notebooks of Jupyter whose cells run in a sandbox."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import msgspec

from dios.cli.common.application import CommandApplication
from dios.cli.common.extras import needing_extra
from dios.cli.common.options import argument, option
from dios.cli.common.results import CommonOptions, OutputOptions
from dios.cli.common.rows import Row
from dios.cli.tasks.sandbox_options import SandboxOptions, given_bounds, given_inputs, seconds_or_none
from dios.client.plain_text import plain
from dios.errors import InvalidError
from dios.lib.images.layouts import lasting
from dios.lib.sandbox.async_sandbox import Sandbox

app: Final = CommandApplication(
    no_args_is_help=True,
    help="Notebooks of Jupyter whose cells run in a sandbox: they reach their inputs and the installed "
    "packages, and no other file, no network without --network, no other process.",
)

_NAME: Final = "dios-sandbox"
_TITLE: Final = "DIOS sandbox"
_WHAT: Final = "kernels of notebooks"


class KernelRow(Row):
    """A kernel of dios in Jupyter: its name, the name that notebooks show, and its folder."""

    name: str
    display_name: str
    folder: str


class KernelOptions(SandboxOptions):
    """The options of the sandbox of a notebook, whose cells have no limit of time."""

    timeout: float | None = option(
        "--timeout SECONDS", "Time of each run, or none for no limit.", parser=seconds_or_none
    )


@app.command(
    examples="dios kernel install\ndios kernel install --user --input sales=sales.parquet --memory '2 GiB'\n"
    "jupyter lab",
    json=KernelRow,
)
def install(
    *,
    user: bool = option("--user", "For all Jupyters of this user, not for this Python alone."),
    prefix: Path | None = option("--prefix DIR", "Below this directory: DIR/share/jupyter/kernels."),
    name: str = option("--name NAME", "The name of the kernel for commands of Jupyter.", default=_NAME),
    title: str = option("--display-name TEXT", "The name that notebooks show.", default=_TITLE),
    options: KernelOptions,
    common: CommonOptions,
) -> None:
    """Let Jupyter offer the kernel "DIOS sandbox"; the options hold for each of its notebooks.

    It replaces a kernel of dios with the same name. Without a running node, a notebook starts a private one.
    """
    with needing_extra("jupyter", _WHAT):
        from dios.bridges import jupyter_specs as specs  # noqa: PLC0415 - an optional dependency
    if user and prefix is not None:
        raise InvalidError("give --user or --prefix, not both")
    files = {label: Path(path).absolute() for label, path in given_inputs(options.inputs).items()}
    # The name of a node of the local cluster is no path.
    node = common.node
    place = str(Path(node).absolute()) if node is not None and Path(node).exists() else node
    # Mistakes are reported now, and not in each notebook: this starts nothing.
    options.sandbox(Sandbox)
    for file in files.values():
        file.open("rb").close()
    kernel = specs.KernelOptions(
        template=options.template,
        packages=options.packages or [],
        wheels=_lasting(options.wheels) if options.wheels else None,
        image=lasting(options.image) if options.image else "",
        snapshot=options.snapshot,
        isolation=options.isolation,
        inputs={label: str(file) for label, file in files.items()},
        memory=options.memory,
        cpu_seconds=options.cpu_seconds,
        timeout=options.timeout,
        bounds=msgspec.structs.asdict(given_bounds(options.bounds)) if options.bounds else {},
        network=options.network or [],
        network_ca=None if options.network_ca is None else str(options.network_ca.absolute()),
        network_headers=options.network_header or [],
        node=place,
    )
    install_prefix = None if user else str(prefix or sys.prefix)
    done = specs.install(kernel, name=name, display_name=title, user=user, prefix=install_prefix)
    common.print_row(KernelRow(*done), f"kernel {plain(done.name)} installed in {plain(done.folder)}")


@app.command("ls", examples="dios kernel ls\ndios kernel ls --json", json=[KernelRow])
def list_kernels(output: OutputOptions) -> None:
    """List the kernels of dios that the Jupyter of this Python finds."""
    with needing_extra("jupyter", _WHAT):
        from dios.bridges import jupyter_specs as specs  # noqa: PLC0415 - an optional dependency
    output.print_rows(
        [KernelRow(*kernel) for kernel in specs.installed()],
        lambda row: {"NAME": row.name, "TITLE": row.display_name, "FOLDER": row.folder},
        empty="no kernel of dios is installed; `dios kernel install` installs one",
    )


@app.command(examples="dios kernel remove\ndios kernel remove dios-sales", json=KernelRow)
def remove(
    name: str = argument("[NAME]", "The name of the kernel.", default=_NAME), *, output: OutputOptions
) -> None:
    """Remove a kernel of dios from Jupyter."""
    with needing_extra("jupyter", _WHAT):
        from dios.bridges import jupyter_specs as specs  # noqa: PLC0415 - an optional dependency
    done = specs.remove(name)
    output.print_row(KernelRow(*done), f"kernel {plain(done.name)} removed from {plain(done.folder)}")


def _lasting(place: str) -> str:
    """Return a place of wheels that means the same in other working directories."""
    return place if "://" in place else str(Path(place).absolute())

"""``dios kernel``: notebooks of Jupyter whose cells run in a sandbox."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final, TypedDict

import msgspec
import typer

from dios.cli.common.application import CommandApplication
from dios.cli.common.extras import needing_extra
from dios.cli.common.output import JsonOption, NodeOption, reporting, say, table, write_json
from dios.cli.tasks.sandbox_options import (
    AuthoritiesOption,
    BoundsOption,
    CpuOption,
    HeadersOption,
    InputOption,
    MemoryOption,
    NetworkOption,
    TemplateOption,
    TimeOption,
    given_bounds,
    given_inputs,
)
from dios.client.plain_text import plain
from dios.errors import InvalidError
from dios.lib.sandbox.async_sandbox import Sandbox
from dios.lib.sandbox.network.grant import headers_from_variables

app: Final = CommandApplication(
    no_args_is_help=True,
    help="Notebooks of Jupyter whose cells run in a sandbox: they reach their inputs and the installed "
    "packages, and no other file, no network without --network, no other process.",
)

_NAME: Final = "dios-sandbox"
_TITLE: Final = "DIOS sandbox"
_WHAT: Final = "kernels of notebooks"

NameOption = Annotated[
    str, typer.Option("--name", metavar="NAME", help="The name of the kernel for commands of Jupyter.")
]


@app.command(
    epilog="\b\nExamples:\n  dios kernel install\n"
    "  dios kernel install --user --input sales=sales.parquet --memory '2 GiB'\n"
    "  jupyter lab"
)
def install(
    *,
    user: Annotated[
        bool, typer.Option("--user", help="For all Jupyters of this user, not for this Python alone.")
    ] = False,
    prefix: Annotated[
        Path | None,
        typer.Option("--prefix", metavar="DIR", help="Below this directory: DIR/share/jupyter/kernels."),
    ] = None,
    name: NameOption = _NAME,
    title: Annotated[
        str, typer.Option("--display-name", metavar="TEXT", help="The name that notebooks show.")
    ] = _TITLE,
    inputs: InputOption = None,
    template: TemplateOption = "",
    memory: MemoryOption = None,
    cpu_seconds: CpuOption = None,
    timeout: TimeOption = None,
    bounds: BoundsOption = None,
    network: NetworkOption = None,
    network_ca: AuthoritiesOption = None,
    network_header: HeadersOption = None,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let Jupyter offer the kernel "DIOS sandbox"; the options hold for each of its notebooks.

    It replaces a kernel of dios with the same name. Without a running node, a notebook starts a private one.
    """
    with reporting("dios kernel install", as_json=as_json):
        with needing_extra("jupyter", _WHAT):
            from dios.bridges import jupyter_specs as specs  # noqa: PLC0415 - an optional dependency
        if user and prefix is not None:
            raise InvalidError("give --user or --prefix, not both")
        files = {label: Path(path).absolute() for label, path in given_inputs(inputs).items()}
        # The name of a node of the local cluster is no path.
        place = str(Path(node).absolute()) if node is not None and Path(node).exists() else node
        # Mistakes are reported now, and not in each notebook: this starts nothing.
        Sandbox(
            template=template,
            inputs=files,
            memory=memory,
            cpu_seconds=cpu_seconds,
            timeout=timeout,
            bounds=given_bounds(bounds),
            network=network or (),
            network_ca=network_ca,
            network_headers=headers_from_variables(network_header or ()),
        )
        for file in files.values():
            file.open("rb").close()
        options = specs.KernelOptions(
            template=template,
            inputs={label: str(file) for label, file in files.items()},
            memory=memory,
            cpu_seconds=cpu_seconds,
            timeout=timeout,
            bounds=msgspec.structs.asdict(given_bounds(bounds)) if bounds else {},
            network=network or [],
            network_ca=None if network_ca is None else str(network_ca.absolute()),
            network_headers=network_header or [],
            node=place,
        )
        install_prefix = None if user else str(prefix or sys.prefix)
        done = specs.install(options, name=name, display_name=title, user=user, prefix=install_prefix)
        if as_json:
            write_json(_described(*done))
        else:
            say(f"kernel {plain(done.name)} installed in {plain(done.folder)}")


class KernelRow(TypedDict):
    """A kernel of dios in Jupyter: its name, the name that notebooks show, and its folder."""

    name: str
    display_name: str
    folder: str


def _described(name: str, display_name: str, folder: str) -> KernelRow:
    return {"name": name, "display_name": display_name, "folder": folder}


@app.command("ls", epilog="\b\nExamples:\n  dios kernel ls\n  dios kernel ls --json")
def list_kernels(*, as_json: JsonOption = False) -> None:
    """List the kernels of dios that the Jupyter of this Python finds."""
    with reporting("dios kernel ls", as_json=as_json):
        with needing_extra("jupyter", _WHAT):
            from dios.bridges import jupyter_specs as specs  # noqa: PLC0415 - an optional dependency
        kernels = specs.installed()
        if as_json:
            write_json([_described(*kernel) for kernel in kernels])
        elif kernels:
            table(("NAME", "TITLE", "FOLDER"), [tuple(map(plain, kernel)) for kernel in kernels])
        else:
            say("no kernel of dios is installed; `dios kernel install` installs one")


@app.command(epilog="\b\nExamples:\n  dios kernel remove\n  dios kernel remove dios-sales")
def remove(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="The name of the kernel.")] = _NAME,
    *,
    as_json: JsonOption = False,
) -> None:
    """Remove a kernel of dios from Jupyter."""
    with reporting("dios kernel remove", as_json=as_json):
        with needing_extra("jupyter", _WHAT):
            from dios.bridges import jupyter_specs as specs  # noqa: PLC0415 - an optional dependency
        done = specs.remove(name)
        if as_json:
            write_json(_described(*done))
        else:
            say(f"kernel {plain(done.name)} removed from {plain(done.folder)}")

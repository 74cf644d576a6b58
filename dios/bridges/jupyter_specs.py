"""The kernels "DIOS sandbox" that Jupyter knows: installed, listed and removed as kernel specifications."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Final, NamedTuple, TypeAlias

import msgspec
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager, NoSuchKernel

from dios import limits
from dios.errors import InvalidError

_MARK: Final = "dios"
"""The key in the metadata of a specification that marks a kernel of this package."""

_NAME_CHARS_MAX: Final = 255
_PATH_CHARS_MAX: Final = 4096

_Name: TypeAlias = Annotated[str, msgspec.Meta(max_length=_NAME_CHARS_MAX)]
_Path: TypeAlias = Annotated[str, msgspec.Meta(max_length=_PATH_CHARS_MAX)]
_Bound: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=limits.GIB)]
_Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class KernelOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The arguments of the sandbox of a kernel."""

    template: _Name = ""
    packages: Annotated[list[_Name], msgspec.Meta(max_length=limits.ENVIRONMENT_PACKAGES_MAX)] = []
    wheels: _Path | None = None
    image: _Path = ""
    snapshot: _Path = ""
    isolation: _Name = "kernel"
    inputs: Annotated[dict[_Name, _Path], msgspec.Meta(max_length=limits.ARGUMENTS_MAX)] = {}
    memory: _Name | None = None
    cpu_seconds: _Seconds | None = None
    timeout: _Seconds | None = None
    bounds: Annotated[dict[_Name, _Bound], msgspec.Meta(max_length=limits.ARGUMENTS_MAX)] = {}
    network: Annotated[list[_Path], msgspec.Meta(max_length=limits.ORIGINS_MAX)] = []
    network_ca: _Path | None = None
    network_headers: Annotated[list[_Path], msgspec.Meta(max_length=limits.ARGUMENTS_MAX)] = []
    """Texts that name variables of the environment, whose values the kernel reads: no secret is stored."""
    node: _Path | None = None


class InstalledKernel(NamedTuple):
    """A kernel of this package: its name, the name that notebooks show, and its folder."""

    name: str
    display_name: str
    folder: str


def install(
    options: KernelOptions, *, name: str, display_name: str, user: bool = False, prefix: str | None = None
) -> InstalledKernel:
    """Let Jupyter offer a kernel: to the user, or below a prefix such as that of a virtual environment.

    Raises InvalidError for a name that Jupyter does not accept, or of another kernel there, and OSError.
    """
    manager = KernelSpecManager()
    spec = _specifications(manager).get(name)
    if spec is not None and _MARK not in spec.metadata:
        raise InvalidError(f"there is another kernel {name!r}, in {spec.resource_dir}: choose a --name")
    document = {
        # -P keeps the folder of the notebook out of the path: its files must not run outside of a sandbox.
        "argv": [
            *(sys.executable, "-P", "-m", "dios.bridges.jupyter_kernel"),
            *("-f", "{connection_file}", "--options", msgspec.json.encode(options).decode()),
        ],
        "display_name": display_name,
        "language": "python",
        "interrupt_mode": "message",
        "metadata": {_MARK: True},
    }
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "kernel.json").write_text(json.dumps(document, indent=1) + "\n")
        try:
            place = manager.install_kernel_spec(folder, kernel_name=name, user=user, prefix=prefix)
        except ValueError as error:
            raise InvalidError(f"cannot install the kernel: {error}") from None
    return InstalledKernel(name, display_name, place)


def installed() -> list[InstalledKernel]:
    """Return the kernels of this package that the Jupyter of this environment finds."""
    specs = _specifications(KernelSpecManager())
    return [
        InstalledKernel(name, spec.display_name, spec.resource_dir)
        for name, spec in sorted(specs.items())
        if _MARK in spec.metadata
    ]


def remove(name: str) -> InstalledKernel:
    """Remove a kernel of this package. Raise InvalidError if there is none with this name, and OSError."""
    manager = KernelSpecManager()
    spec = _specifications(manager).get(name)
    if spec is None or _MARK not in spec.metadata:
        known = ", ".join(kernel.name for kernel in installed()) or "none"
        raise InvalidError(f"there is no kernel {name!r} of dios; installed: {known}")
    manager.remove_kernel_spec(name)
    return InstalledKernel(name, spec.display_name, spec.resource_dir)


def _specifications(manager: KernelSpecManager) -> dict[str, KernelSpec]:
    specs = {}
    for name in manager.find_kernel_specs():
        try:
            specs[name] = manager.get_kernel_spec(name)
        except (NoSuchKernel, ValueError):
            continue  # another one's, and damaged
    return specs

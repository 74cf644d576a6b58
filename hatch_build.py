"""Puts into a wheel the list of packages that ``dios up --hosts`` may install, in CycloneDX's format.

The place of the list is that of PEP 770. ``make dist`` enables this hook. Other builds go without it, and so
need no library for the format.
"""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import NAMESPACE_DNS, uuid5

from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packageurl import PackageURL

LOCK = "dios/node/bringup/hosts.lock"
PACKAGE = re.compile(r"^([\w.-]+)==(\S+)", re.MULTILINE)


def component(name: str, version: str, kind: ComponentType = ComponentType.LIBRARY) -> Component:
    """Return a package by its name on package indexes and its version."""
    place = PackageURL("pypi", None, name, version)
    return Component(type=kind, name=name, version=version, purl=place, bom_ref=str(place))


class PackageListHook(BuildHookInterface):
    """Adds ``sboms/NAME.cdx.json`` to the description in a wheel; the same sources give the same bytes."""

    def initialize(self, version: str, build_data: dict[str, list[str]]) -> None:
        """Write the list and name it to the builder; ``version`` is the kind of wheel."""
        if version != "standard":
            return
        lock = (Path(self.root) / LOCK).read_text()
        name, own_version = self.metadata.core.name, self.metadata.version
        product = component(name, own_version, ComponentType.APPLICATION)
        packages = [component(*row) for row in PACKAGE.findall(lock)]
        bom = Bom(
            components=packages,
            metadata=BomMetaData(component=product),
            serial_number=uuid5(NAMESPACE_DNS, f"{name} {own_version}\n{lock}"),
        )
        bom.metadata.timestamp = None
        bom.register_dependency(product, packages)
        self.folder = TemporaryDirectory()
        path = Path(self.folder.name) / f"{name}.cdx.json"
        make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_to_file(str(path), indent=2)
        build_data["sbom_files"].append(str(path))

    def finalize(self, version: str, *_: object) -> None:
        """Remove the list, which the wheel has now."""
        if version == "standard":
            self.folder.cleanup()

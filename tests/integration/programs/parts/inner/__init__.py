"""An inner package."""

import importlib
import importlib.resources
import pkgutil
from pathlib import Path


def deep():
    """Import a module when it is called."""
    from . import late

    return late.VALUE


def dynamic():
    """Import a module by its name."""
    return importlib.import_module("lonely").VALUE


def resource():
    """Read a data file in three ways."""
    return (
        importlib.resources.files("parts.inner").joinpath("data.txt").read_text(),
        pkgutil.get_data("parts", "inner/data.txt"),
        (Path(__file__).parent / "data.txt").read_text(),
    )


def listed():
    """List the modules of the package."""
    import parts

    return sorted(module.name for module in pkgutil.walk_packages(parts.__path__, "parts."))

"""Services in TOML files: the same facts as the arguments of ``Services.create``."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated

import msgspec

from dios import limits
from dios.errors import InvalidError
from dios.wire.schema_words import fault_in_words


class ServiceFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One service as a file describes it.

    ``program`` and ``check`` are paths relative to the file. ``inputs`` are labels with the names of stored
    objects, ``groups`` are aliases of the keyring.
    """

    name: str
    program: str
    replicas: Annotated[int, msgspec.Meta(ge=0, le=limits.SERVICE_REPLICAS_MAX)] = 1
    args: tuple[str, ...] = ()
    inputs: dict[str, str] = {}
    groups: tuple[str, ...] = ()
    cpus: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    mem: str = ""
    disk_io: str = ""
    net: str = ""
    devices: dict[str, int] = {}
    memory: str = ""
    network: bool = False
    template: str = ""
    check: str = ""
    check_every: Annotated[float, msgspec.Meta(ge=0.1, le=limits.SERVICE_SPAN_MS_MAX / 1000)] = (
        limits.SERVICE_CHECK_EVERY_MS / 1000
    )
    healthy_after: Annotated[float, msgspec.Meta(ge=0, le=limits.SERVICE_SPAN_MS_MAX / 1000)] = (
        limits.SERVICE_HEALTHY_MS / 1000
    )


def read(path: Path) -> ServiceFile:
    """Return the service of a file. Raise InvalidError, which names the mistake."""
    try:
        return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), ServiceFile)
    except OSError as error:
        raise InvalidError(f"cannot read {path}: {error.strerror}") from None
    except msgspec.ValidationError as error:
        raise InvalidError(f"{path} describes no service: {fault_in_words(error)}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidError(f"{path} describes no service: {error}") from None

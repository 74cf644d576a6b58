"""Devices of a node for tasks: the setting ``devices``, and the search for GPUs on this machine.

``dios.core.calls.devices`` gives them to tasks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from dios import limits
from dios.errors import InvalidError
from dios.wire.messages import Device

GPU: Final = "gpu"
AUTO: Final = "auto"
_KIND: Final = re.compile(rf"[a-z][a-z0-9_-]{{0,{limits.DEVICE_KIND_CHARS_MAX - 1}}}")
_NVIDIA: Final = re.compile(r"nvidia(\d{1,3})")


class DeviceSetting(NamedTuple):
    """The devices of one kind, as the operator gave them.

    ``most`` is their number if the node finds or counts them, None for all that it finds. ``files`` has the
    files of each device that was named by hand; it is empty otherwise.
    """

    kind: str
    most: int | None
    files: tuple[tuple[str, ...], ...] = ()


class FoundDevices(NamedTuple):
    """The devices for tasks, and a text for each kind of which fewer exist than were set."""

    devices: tuple[Device, ...]
    problems: tuple[str, ...]


def read_devices(value: object) -> tuple[DeviceSetting, ...]:
    """Read the setting: a table, or text like ``gpu=auto licence=3 fpga=/dev/a,/dev/b``.

    Raise TypeError, ValueError or InvalidError with what is expected.
    """
    if isinstance(value, str):
        pairs = [word.partition("=") for word in value.split()]
        value = {kind: said.split(",") if said.startswith("/") else said for kind, _, said in pairs}
    if not isinstance(value, dict):
        raise TypeError('a table like [devices], or text like "gpu=auto licence=3"')
    if len(value) > limits.DEVICE_KINDS_MAX:
        raise ValueError(f"at most {limits.DEVICE_KINDS_MAX} kinds of devices")
    settings = tuple(_setting(str(kind), said) for kind, said in sorted(value.items()))
    if sum(len(setting.files) or setting.most or 0 for setting in settings) > limits.DEVICES_MAX:
        raise ValueError(f"at most {limits.DEVICES_MAX} devices")
    return settings


def find_devices(settings: Iterable[DeviceSetting], folder: Path = Path("/dev")) -> FoundDevices:
    """Return the devices of this machine that the settings give to tasks.

    GPUs without given paths are those of NVIDIA, ``/dev/nvidia0`` and so on. Kinds with a number alone have
    no files: they are licences, for example, or take the place of a device in a test.
    """
    devices: list[Device] = []
    problems: list[str] = []
    for setting in settings:
        if setting.files:
            for number, files in enumerate(setting.files):
                if all(Path(file).exists() for file in files):
                    devices.append(Device(setting.kind, str(number), files))
                else:
                    problems.append(f"{setting.kind} {number}: {', '.join(files)} does not exist")
        elif setting.kind == GPU:
            gpus = _gpus(folder)[: setting.most]
            devices += gpus
            if setting.most is not None and len(gpus) < setting.most:
                problems.append(f"{GPU} = {setting.most}, and {folder} has {len(gpus)} GPUs of NVIDIA")
        else:
            devices += [Device(setting.kind, str(number)) for number in range(setting.most or 0)]
    return FoundDevices(tuple(devices[: limits.DEVICES_MAX]), tuple(problems))


def _gpus(folder: Path) -> list[Device]:
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError:
        return []
    numbers = sorted(int(match[1]) for name in names if (match := _NVIDIA.fullmatch(name)))
    return [Device(GPU, str(number), (str(folder / f"nvidia{number}"),)) for number in numbers]


def _setting(kind: str, said: object) -> DeviceSetting:
    if not _KIND.fullmatch(kind):
        raise InvalidError(
            "a kind of devices has small letters, digits, '-' and '_', at most "
            f"{limits.DEVICE_KIND_CHARS_MAX}, not {kind!r}"
        )
    if isinstance(said, list):
        return DeviceSetting(kind, None, tuple(_files(kind, paths) for paths in said))
    if isinstance(said, str) and re.fullmatch(r"[0-9]{1,4}", said):
        said = int(said)
    if said == AUTO and kind == GPU:
        return DeviceSetting(kind, None)
    if isinstance(said, bool) or not isinstance(said, int) or not 0 <= said <= limits.DEVICES_MAX:
        auto = f'"{AUTO}", ' if kind == GPU else ""
        raise InvalidError(
            f"devices of the kind {kind} are {auto}a number up to {limits.DEVICES_MAX}, or a list of paths, "
            f"not {said!r}"
        )
    return DeviceSetting(kind, said)


def _files(kind: str, said: object) -> tuple[str, ...]:
    files = said if isinstance(said, list) else [said]
    if not 1 <= len(files) <= limits.DEVICE_FILES_MAX or not all(
        isinstance(file, str) and file.startswith("/") for file in files
    ):
        raise InvalidError(
            f"a device of the kind {kind} is an absolute path, or a list of at most "
            f"{limits.DEVICE_FILES_MAX}, not {said!r}"
        )
    return tuple(map(str, files))

"""The setting ``devices``, and the search for the devices that it names."""

from __future__ import annotations

from pathlib import Path

import pytest

from dios.errors import InvalidError
from dios.node.devices import find_devices, read_devices
from dios.wire.messages import Device


def test_devices_are_found_named_and_counted(tmp_path: Path) -> None:
    """GPUs are those of the folder, others have the given files, and a number alone needs no hardware."""
    for name in ("nvidia1", "nvidia0", "nvidiactl", "nvidia-uvm", "null", "a", "b"):
        (tmp_path / name).touch()
    table = {
        "gpu": "auto",
        "seat": 2,
        "fpga": [f"{tmp_path}/a", [f"{tmp_path}/a", f"{tmp_path}/b"], "/no/such"],
    }
    inventory = find_devices(read_devices(table), tmp_path)
    assert inventory.devices == (
        Device("fpga", "0", (f"{tmp_path}/a",)),
        Device("fpga", "1", (f"{tmp_path}/a", f"{tmp_path}/b")),
        Device("gpu", "0", (f"{tmp_path}/nvidia0",)),
        Device("gpu", "1", (f"{tmp_path}/nvidia1",)),
        Device("seat", "0"),
        Device("seat", "1"),
    )
    assert inventory.problems == ("fpga 2: /no/such does not exist",)


def test_missing_gpus_are_reported(tmp_path: Path) -> None:
    """A node with fewer GPUs than its settings name has those that exist, and says so."""
    (tmp_path / "nvidia0").touch()
    inventory = find_devices(read_devices("gpu=2"), tmp_path)
    assert [device.name for device in inventory.devices] == ["0"]
    assert "has 1 GPUs" in inventory.problems[0]
    assert find_devices(read_devices("gpu=1"), tmp_path / "none").devices == ()


def test_text_and_table_mean_the_same() -> None:
    """The environment and the command line write the same setting as text."""
    assert read_devices("gpu=auto seat=3 fpga=/dev/a,/dev/b") == read_devices(
        {"gpu": "auto", "seat": 3, "fpga": ["/dev/a", "/dev/b"]}
    )


@pytest.mark.parametrize(
    "value",
    [
        {"GPU": 1},
        {"seat": "auto"},
        {"seat": True},
        {"seat": -1},
        {"seat": 65},
        {"a": 40, "b": 40},
        {"seat": ["relative"]},
        {"seat": [[]]},
        {"seat": [["/dev/a"] * 9]},
        {f"k{number}": 1 for number in range(9)},
        "gpu",
        7,
    ],
)
def test_a_wrong_setting_is_refused(value: object) -> None:
    """Unknown words, too many devices and relative paths are refused."""
    with pytest.raises((InvalidError, TypeError, ValueError)):
        read_devices(value)

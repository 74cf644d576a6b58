from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from dios.node.bringup.dependencies import GatheringError, Platform, gather, requirements
from dios.node.bringup.ssh import Upload
from dios.node.bringup.wheel import Wheel
from tests.support.node.wheels import small_wheel

HOST = Platform("3.11", "x86_64", "2.17")


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pip know no other places than those of the test."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)


@pytest.fixture
def own(tmp_path: Path) -> Wheel:
    """The wheel of a package that needs another one, and one more with an extra."""
    path = small_wheel(
        tmp_path / "own",
        "thing",
        "1.0",
        requires=["needed", "more; extra == 'web'", "other>=2; extra == 'x'"],
    )
    return Wheel(path.name, path.read_bytes())


def test_platforms_name_every_promise_that_holds() -> None:
    """Wheels for this version of glibc and for all before it work, by both kinds of names."""
    assert list(HOST.tags())[:3] == ["manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux_2_16_x86_64"]
    assert list(HOST.tags())[-1] == "manylinux1_x86_64"
    assert next(Platform("3.12", "aarch64", "").tags()) == "musllinux_1_2_aarch64"


def test_the_wheels_are_those_that_the_host_needs(own: Wheel, tmp_path: Path) -> None:
    """Of a folder, a host gets the newest wheels for its Python and its machine, and no others."""
    folder = tmp_path / "wheels"
    fitting = [
        small_wheel(folder, "needed", "2.0", tag="cp311-cp311-manylinux2014_x86_64"),
        small_wheel(folder, "more", "1.0"),
    ]
    for tag in ("cp312-cp312-manylinux2014_x86_64", "cp311-cp311-manylinux_2_28_x86_64"):
        small_wheel(folder, "needed", "3.0", tag=tag)
    small_wheel(folder, "thing", "7.0")
    small_wheel(folder, "unneeded", "1.0")
    wheels = gather(own, HOST, extras="web", folder=folder)
    assert {upload.name for upload in wheels} == {path.name for path in fitting}
    assert all((folder / upload.name).read_bytes() == upload.data for upload in wheels)


def test_a_missing_wheel_is_named_with_the_remedy(own: Wheel, tmp_path: Path) -> None:
    """The message names the platform, the package, and what to do with the folder."""
    small_wheel(tmp_path / "wheels", "other", "2.0")
    with pytest.raises(GatheringError, match=r"Python 3.11 on x86_64 with glibc 2.17: .*needed.*Fill it"):
        gather(own, HOST, extras="x", folder=tmp_path / "wheels")


def test_every_wheel_is_pinned_by_its_hash(own: Wheel) -> None:
    """The requirements name each version and the hash of its bytes; this package also has its extras."""
    text = requirements(own, [Upload("more-1.0+local-py3-none-any.whl", b"bytes")], extras="web")
    assert text.splitlines() == [
        f"thing[web]==1.0 --hash=sha256:{hashlib.sha256(own.data).hexdigest()}",
        f"more==1.0+local --hash=sha256:{hashlib.sha256(b'bytes').hexdigest()}",
    ]

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from dios.errors import InvalidError
from dios.node.bringup.dependencies import OWN_LOCK, GatheringError, Platform, gather, read_lock, requirements
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
    wheels = gather(own, HOST, extras="web", folder=folder, lock=None)
    assert {upload.name for upload in wheels} == {path.name for path in fitting}
    assert all((folder / upload.name).read_bytes() == upload.data for upload in wheels)


def test_a_missing_wheel_is_named_with_the_remedy(own: Wheel, tmp_path: Path) -> None:
    """The message names the platform, the package, and what to do with the folder."""
    small_wheel(tmp_path / "wheels", "other", "2.0")
    with pytest.raises(GatheringError, match=r"Python 3.11 on x86_64 with glibc 2.17: .*needed.*Fill it"):
        gather(own, HOST, extras="x", folder=tmp_path / "wheels", lock=None)


def test_every_wheel_is_pinned_by_its_hash(own: Wheel) -> None:
    """The requirements name each version and the hash of its bytes; this package also has its extras."""
    text = requirements(own, [Upload("more-1.0+local-py3-none-any.whl", b"bytes")], extras="web")
    assert text.splitlines() == [
        f"thing[web]==1.0 --hash=sha256:{hashlib.sha256(own.data).hexdigest()}",
        f"more==1.0+local --hash=sha256:{hashlib.sha256(b'bytes').hexdigest()}",
    ]


def lock_of(path: Path, *wheels: Path) -> Path:
    """Write a lock that names these wheels."""
    names = [wheel.name.split("-") for wheel in wheels]
    digests = [hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels]
    path.write_text(
        "".join(
            f"{words[0]}=={words[1]} ; python_version > '3' \\\n    --hash=sha256:{'0' * 64} \\\n"
            f"    --hash=sha256:{digest}\n"
            for words, digest in zip(names, digests, strict=True)
        )
    )
    return path


def test_a_lock_chooses_the_versions(own: Wheel, tmp_path: Path) -> None:
    """Newer wheels are left alone."""
    locked = small_wheel(tmp_path / "wheels", "needed", "1.0")
    small_wheel(tmp_path / "wheels", "needed", "2.0")
    lock = read_lock(lock_of(tmp_path / "lock", locked))
    assert lock.constraints == "needed==1.0 ; python_version > '3'\n"
    (upload,) = gather(own, HOST, extras="", folder=tmp_path / "wheels", lock=lock)
    assert upload == (locked.name, locked.read_bytes())


def test_a_wheel_with_another_hash_is_not_uploaded(own: Wheel, tmp_path: Path) -> None:
    """It has the name and the version of the locked one, and other bytes."""
    locked = small_wheel(tmp_path / "released", "needed", "1.0")
    small_wheel(tmp_path / "wheels", "needed", "1.0", files={"needed.py": "evil = True"})
    lock = read_lock(lock_of(tmp_path / "lock", locked))
    with pytest.raises(GatheringError, match=r"needed-1.0-py3-none-any.whl is not a wheel of the lock"):
        gather(own, HOST, extras="", folder=tmp_path / "wheels", lock=lock)


def test_a_package_that_the_lock_lacks_is_not_uploaded(own: Wheel, tmp_path: Path) -> None:
    """The lock names all packages, also those that others need."""
    wheels = [small_wheel(tmp_path / "wheels", name, "1.0") for name in ("needed", "more")]
    lock = read_lock(lock_of(tmp_path / "lock", *wheels[:1]))
    with pytest.raises(GatheringError, match=r"more-1.0-py3-none-any.whl is not a wheel of the lock"):
        gather(own, HOST, extras="web", folder=tmp_path / "wheels", lock=lock)


@pytest.mark.parametrize(
    "text", [None, "", "needed>=1\n", "needed==1.0\nmore==1.0 --hash=sha256:" + "0" * 64]
)
def test_a_file_without_hashes_is_no_lock(tmp_path: Path, text: str | None) -> None:
    """Each package needs a version and a hash; a file that is missing is said to be."""
    path = tmp_path / "lock"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InvalidError, match=r"not a lock|cannot read the lock"):
        read_lock(path)


def test_this_version_has_a_lock() -> None:
    """The lock that `dios up` uses unless another one is named can be read, and has what nodes need."""
    assert {"trio", "msgspec", "cryptography", "numba"} <= read_lock(OWN_LOCK).digests.keys()

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from dios.errors import DiosError
from dios.installation import FILE_NAME, version
from dios.node.bringup.release import HASHES, NAMESPACE, SIGNATURE, Place
from dios.trusted_files import UntrustedError

pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")

WHEEL = f"{FILE_NAME}-{version()}-py3-none-any.whl"


def new_key(path: Path) -> str:
    """Make a key pair; return the public key."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", path], check=True)
    return path.with_suffix(".pub").read_text().strip()


def sign(release: Place, key: Path, namespace: str = NAMESPACE) -> None:
    """Write the hash of the wheel, and sign it."""
    digest = hashlib.sha256((release.folder / WHEEL).read_bytes()).hexdigest()
    hashes = release.folder / HASHES
    hashes.write_text(f"{'0' * 64}  another.whl\n{digest}  {WHEEL}\n")
    (release.folder / SIGNATURE).unlink(missing_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", namespace, hashes], check=True)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """The key of the maintainers, next to which the public one is."""
    new_key(tmp_path / "key")
    return tmp_path / "key"


@pytest.fixture
def release(tmp_path: Path, key: Path) -> Place:
    """A release that they signed, and the file that names their key."""
    signers = tmp_path / "signers"
    signers.write_text(f'maintainers namespaces="{NAMESPACE}" {key.with_suffix(".pub").read_text()}')
    signers.chmod(0o644)
    folder = tmp_path / "release"
    folder.mkdir()
    (folder / WHEEL).write_bytes(b"a wheel")
    place = Place(folder, signers)
    sign(place, key)
    return place


def test_hosts_get_the_wheel_that_was_signed(release: Place) -> None:
    """Its name and bytes are returned."""
    assert release.wheel() == (WHEEL, b"a wheel")


def test_a_wheel_that_was_changed_is_refused(release: Place) -> None:
    """Its hash is not the signed one."""
    (release.folder / WHEEL).write_bytes(b"A wheel")
    with pytest.raises(DiosError, match="not the wheel that was released"):
        release.wheel()


def test_hashes_that_were_changed_are_refused(release: Place) -> None:
    """A wheel whose hash was replaced, too, needs a new signature."""
    (release.folder / WHEEL).write_bytes(b"A wheel")
    digest = hashlib.sha256(b"A wheel").hexdigest()
    (release.folder / HASHES).write_text(f"{digest}  {WHEEL}\n")
    with pytest.raises(DiosError, match="not signed by a key in"):
        release.wheel()


def test_the_key_of_somebody_else_is_refused(release: Place, tmp_path: Path) -> None:
    """A signature that is valid otherwise counts only if its key is in the file of signers."""
    new_key(tmp_path / "other")
    sign(release, tmp_path / "other")
    with pytest.raises(DiosError, match="not signed by a key in"):
        release.wheel()


def test_a_signature_for_another_purpose_is_refused(release: Place, key: Path) -> None:
    """The maintainers sign other things with the same key, also files with hashes."""
    release.signers.write_text(f"maintainers {key.with_suffix('.pub').read_text()}")
    sign(release, key)
    release.wheel()
    sign(release, key, "git")
    with pytest.raises(DiosError, match="not signed by a key in"):
        release.wheel()


@pytest.mark.parametrize("name", [WHEEL, HASHES, SIGNATURE])
def test_a_missing_file_is_named(release: Place, name: str) -> None:
    """Without a signature nothing is installed."""
    (release.folder / name).unlink()
    with pytest.raises(DiosError, match=f"cannot read .*{name}: No such file"):
        release.wheel()


def test_signers_that_others_may_change_are_refused(release: Place) -> None:
    """Otherwise another user of this machine adds a key."""
    release.signers.chmod(0o666)
    with pytest.raises(UntrustedError, match="file of signers"):
        release.wheel()


def test_without_the_program_nothing_is_installed(release: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what to install."""
    monkeypatch.setenv("PATH", "")
    with pytest.raises(DiosError, match="openssh-client"):
        release.wheel()

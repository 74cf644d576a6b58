"""Checks the signature of a release, so that hosts install exactly the wheel that its maintainers published.

A maintainer signs the list of hashes of all files of a release with an ssh key (docs/releasing.md). OpenSSH
makes and checks the signature, and the keys that may sign are in a file of its format ``allowed_signers``.
"""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

from dios.errors import InvalidError, NotSupportedError
from dios.installation import FILE_NAME, version
from dios.node.bringup.wheel import Wheel
from dios.trusted_files import require_trusted

HASHES: Final = "SHA256SUMS"
SIGNATURE: Final = f"{HASHES}.sig"
NAMESPACE: Final = "dios-release"
"""A signature that the same key made for another purpose is none of a release."""


class Place(NamedTuple):
    """The directory with the files of a release, and the file with the keys that may sign it."""

    folder: Path
    signers: Path

    def wheel(self) -> Wheel:
        """Return the wheel of the running version, whose hash is signed.

        Raise InvalidError if a file is missing, the signature is not by one of the signers, or the wheel has
        another hash; NotSupportedError without ssh-keygen; UntrustedError if others may change the signers.
        """
        name = f"{FILE_NAME}-{version()}-py3-none-any.whl"
        hashes, data = self._read(HASHES), self._read(name)
        self._check_signature(hashes)
        if f"{hashlib.sha256(data).hexdigest()}  {name}".encode() not in hashes.splitlines():
            raise InvalidError(
                f"{self.folder / name} is not the wheel that was released: its hash is not in {HASHES}, "
                "which is signed. Download it again, and do not use this one."
            )
        return Wheel(name, data)

    def _read(self, name: str) -> bytes:
        try:
            return (self.folder / name).read_bytes()
        except OSError as error:
            raise InvalidError(
                f"cannot read {self.folder / name}: {error.strerror}. The directory that --release names "
                "needs all files of the release of this version; without --release hosts get the version "
                "that runs here."
            ) from None

    def _check_signature(self, hashes: bytes) -> None:
        self._read(SIGNATURE)
        require_trusted(self.signers, "the file of signers")
        files = ("-f", str(self.signers), "-s", str(self.folder / SIGNATURE))
        signer, *_ = self._keygen(hashes, "find-principals", *files).splitlines() or [""]
        self._keygen(hashes, "verify", *files, "-n", NAMESPACE, "-I", signer)

    def _keygen(self, hashes: bytes, operation: str, *options: str) -> str:
        try:
            done = subprocess.run(
                ["ssh-keygen", "-Y", operation, *options], input=hashes, capture_output=True, check=False
            )
        except FileNotFoundError:
            raise NotSupportedError(
                "cannot check the signature of the release: ssh-keygen is missing. Install OpenSSH's client "
                "(Debian, Ubuntu: apt install openssh-client)."
            ) from None
        if done.returncode:
            reason = done.stderr.decode(errors="replace").strip().splitlines() or ["it gave no reason"]
            raise InvalidError(
                f"the release in {self.folder} is not signed by a key in {self.signers}: {reason[-1]}. "
                "Do not use it before its maintainers have said why."
            )
        return done.stdout.decode(errors="replace")

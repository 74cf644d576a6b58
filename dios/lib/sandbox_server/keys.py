"""The keys of the server's clients, in a file that only its user can read; it has digests, never a key."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec

from dios.client.locate import config_directory
from dios.errors import ExistsError, InvalidError, NotPermittedError
from dios.trusted_files import require_trusted

KEYS_MAX: Final = 1_000
NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?")
_PREFIX: Final = "e2b_"
_SECRET: Final = re.compile(_PREFIX + "[0-9a-f]{40}")
"""Clients of E2B once refused keys of another form."""
_FILE: Final = "sandbox-keys.json"


class KeyBounds(msgspec.Struct, frozen=True, kw_only=True):
    """The most that the sandboxes of a principal have through a key.

    ``sandboxes`` at once, ``memory_bytes`` of all of them together, and ``seconds`` of life of each.
    """

    sandboxes: int
    memory_bytes: int
    seconds: int


class KeyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A key: its name, whose it is, the digest of its text, and its bounds.

    ``principal`` is a user such as uid:1000, a group such as group:students, or the key itself, key:NAME.
    The bounds count the sandboxes of all keys of a principal.
    """

    name: str
    principal: str
    digest: str
    created_ns: int
    bounds: KeyBounds


class _Stored(msgspec.Struct, frozen=True):
    version: Literal[1]
    keys: list[KeyRecord]


class KeyFile:
    """The file of the keys, which is read again whenever it has changed."""

    def __init__(self, path: Path | None = None) -> None:
        self.path: Final = path or config_directory() / _FILE
        self._state: tuple[int, int, int] | None = None
        self._keys: Mapping[str, KeyRecord] = {}

    def keys(self) -> Mapping[str, KeyRecord]:
        """Return the keys by their names.

        Raises NotPermittedError if others may read or change the file, InvalidError if it is damaged.
        """
        try:
            with self.path.open("rb") as file:
                status = os.fstat(file.fileno())
                state = status.st_ino, status.st_mtime_ns, status.st_size
                if state == self._state:
                    return self._keys
                if status.st_mode & 0o077:
                    raise NotPermittedError(
                        f"others may read the keys of the server. Run: chmod 600 {self.path}"
                    )
                require_trusted(self.path, "the file of the server's keys")
                content = file.read()
        except FileNotFoundError:
            self._state, self._keys = None, {}
            return self._keys
        try:
            stored = msgspec.json.decode(content, type=_Stored)
        except msgspec.DecodeError as error:
            raise InvalidError(
                f"{self.path} has no keys of a server: {error}. Restore it, or delete it."
            ) from None
        self._state, self._keys = state, {record.name: record for record in stored.keys}
        return self._keys

    def owner(self, secret: str) -> KeyRecord | None:
        """Return the key with this text, None for any other text."""
        if not _SECRET.fullmatch(secret):
            return None
        digest = _digest(secret)
        return next((record for record in self.keys().values() if record.digest == digest), None)

    def add(self, name: str, principal: str, bounds: KeyBounds) -> str:
        """Store a new key, and return its text, which is stored nowhere.

        Raises InvalidError for a name that no key can have, ExistsError for one that is taken.
        """
        if not NAME.fullmatch(name):
            raise InvalidError(f"a key's name has 1 to 40 small letters, digits and inner '-', not {name!r}")
        secret = _PREFIX + secrets.token_hex(20)
        with self._locked() as keys:
            if name in keys:
                raise ExistsError(f"there is a key {name} already: remove it first, or choose another name")
            if len(keys) >= KEYS_MAX:
                raise InvalidError(f"there are {KEYS_MAX} keys, the most: remove one")
            keys[name] = KeyRecord(
                name=name,
                principal=principal or f"key:{name}",
                digest=_digest(secret),
                created_ns=time.time_ns(),
                bounds=bounds,
            )
        return secret

    def remove(self, name: str) -> None:
        """Remove a key, which no request can use from now on. Raise InvalidError if there is none."""
        with self._locked() as keys:
            if keys.pop(name, None) is None:
                raise InvalidError(f"there is no key {name}: dios sandbox key ls lists them")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[dict[str, KeyRecord]]:
        """Yield the keys to change, and store them; one process at a time."""
        folder = self.path.parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        require_trusted(folder, "the folder of the server's keys")
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            keys = dict(self.keys())
            yield keys
            data = msgspec.json.format(msgspec.json.encode(_Stored(1, list(keys.values()))))
            temporary = folder / f"{_FILE}.{os.urandom(8).hex()}"
            number = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            try:
                with os.fdopen(number, "wb") as file:
                    file.write(data + b"\n")
                    file.flush()
                    os.fsync(file.fileno())
                temporary.replace(self.path)
                os.fsync(lock)
            finally:
                temporary.unlink(missing_ok=True)
        finally:
            os.close(lock)


def _digest(secret: str) -> str:
    # A key is random and long, so that a fast function is enough.
    return hashlib.sha256(secret.encode()).hexdigest()

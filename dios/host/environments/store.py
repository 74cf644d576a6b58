"""The environments on a node's disk, each of one principal, with a bound for all together.

An environment is written into a temporary folder, compared with its digest, and renamed. Whatever is not
complete is removed, at the latest when the node starts again. The environments that were used least recently
make room for new ones; one in which tasks run stays.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import msgspec
import trio
from msgspec import Meta

from dios import limits
from dios.errors import DiosError, InvalidError, MissingEnvironmentError, NoSpaceError, NotSupportedError
from dios.host.confinement import linux_calls
from dios.host.containers.runtimes import NO_RUNTIME, find_gvisor, known_runtimes
from dios.host.content.contents import Content
from dios.host.environments import unpacking
from dios.host.environments.interpreter import python_here
from dios.host.environments.unpacking import AnyManifest, ArchiveReader
from dios.ids import Principal
from dios.wire.environments import DIGEST_CHARS, Manifest, Package, name_for
from dios.wire.fields import U63
from dios.wire.images import ChangeManifest, ImageSettings
from dios.wire.types import Isolation

_log: Final = logging.getLogger(__name__)

_ABOUT: Final = "about.json"
_PACKAGES: Final = "packages"
_TEMPORARY: Final = ".temporary"
_MODE: Final = 0o700
"""Of the folder of all: the users of a node can pass through its data directory. Tasks see a mount."""
_ABOUT_VERSION: Final = 1
_ABOUT_BYTES_MAX: Final = 1 * limits.MIB
_WORD_CHARS_MAX: Final = 256
_OWNER_CHARS: Final = 16
_NS_PER_S: Final = 1_000_000_000


class EnvironmentRecord(msgspec.Struct, frozen=True):
    """The record next to the packages or the image of an environment.

    ``size`` is the number of bytes on the disk. ``python`` names the interpreter for which the packages are,
    or the machine for which an image is.
    """

    version: U63
    principal: Annotated[str, Meta(max_length=_WORD_CHARS_MAX)]
    digest: Annotated[str, Meta(max_length=DIGEST_CHARS)]
    python: Annotated[str, Meta(max_length=_WORD_CHARS_MAX)]
    size: U63
    files: U63
    packages: Annotated[tuple[Package, ...], Meta(max_length=limits.ENVIRONMENT_PACKAGES_MAX)]
    created_ns: U63
    image: ImageSettings | None = None
    """The settings of an image, also if these are changes to it; None for packages."""
    base: Annotated[str, Meta(max_length=DIGEST_CHARS)] = ""
    """The digest of the image if these are changes to it, else empty."""


@dataclass(slots=True)
class Environment:
    """A complete environment, with the time of its last use."""

    key: str
    about: EnvironmentRecord
    used_ns: int


def key_for(principal: Principal, digest: str) -> str:
    """Return the key of a principal's environment: its folder below that of all."""
    owner = hashlib.sha256(principal.encode()).hexdigest()[:_OWNER_CHARS]
    return f"{owner}/{digest}"


def source_of(content: Content) -> int | bytes:
    """Return bytes, or a descriptor for one reader, of a content that stays as it is."""
    return content if isinstance(content, bytes) else content.reader_fd()


class EnvironmentStore:
    """The environments of a node in ``folder``, with ``bytes_max`` bytes at most; 0 permits none.

    Images are among them if the setting ``container_runtime``, or for tasks in gVisor ``gvisor_runtime``,
    names a runtime that this machine has.

    ``end_idle`` ends the processes that wait in an environment; it returns False while a task runs there, as
    ``has_task`` shows.
    """

    def __init__(
        self,
        folder: Path,
        bytes_max: int,
        container_runtime: str = NO_RUNTIME,
        gvisor_runtime: str = NO_RUNTIME,
    ) -> None:
        self._folder: Final = folder
        self._bytes_max: Final = bytes_max
        self._container_runtime: Final = container_runtime
        self._gvisor_runtime: Final = gvisor_runtime
        self.end_idle: Callable[[str], bool] = lambda _: True
        self.has_task: Callable[[str], bool] = lambda _: False
        self._environments: Final[dict[str, Environment]] = {}
        self._held: Final[Counter[str]] = Counter()
        self._building: Final = trio.Lock()
        self._numbers: Final = itertools.count(1)

    def open(self) -> None:
        """Read the environments that are there, and remove what is not complete. May take long."""
        if not self._folder.exists():
            return
        self._folder.chmod(_MODE)
        shutil.rmtree(self._folder / _TEMPORARY, ignore_errors=True)
        for place in sorted(self._folder.glob("*/*")):
            key = str(place.relative_to(self._folder))
            about = _about_at(place)
            if about is None or key != key_for(Principal(about.principal), about.digest):
                _log.warning(
                    "an environment that cannot be read was removed", extra={"environment": place.name}
                )
                shutil.rmtree(place, ignore_errors=True)
            else:
                self._environments[key] = Environment(key, about, (place / _ABOUT).stat().st_mtime_ns)

    @property
    def all(self) -> list[Environment]:
        """All environments, the one that was used last at the end."""
        return sorted(self._environments.values(), key=lambda environment: environment.used_ns)

    @property
    def size(self) -> int:
        """The bytes of all environments on the disk."""
        return sum(environment.about.size for environment in self._environments.values())

    def packages_of(self, key: str) -> Path:
        """Return the folder from which tasks of an environment import."""
        return self._folder / key / _PACKAGES

    def image_of(self, key: str) -> ImageSettings | None:
        """Return the settings of the image in an environment; None for packages, or if there is none."""
        environment = self._environments.get(key)
        return None if environment is None else environment.about.image

    def base_of(self, key: str) -> Path | None:
        """Return the folder of the image to which an environment has changes; None for others."""
        environment = self._environments.get(key)
        base = "" if environment is None else _base_key(environment.about)
        return self.packages_of(base) if base else None

    def is_used(self, key: str) -> bool:
        """Return True while a task runs in the environment, or in changes to it, or starts there."""
        if self._held[key] or not self.end_idle(key):
            return True
        changes = [other.key for other in self._environments.values() if _base_key(other.about) == key]
        return any(map(self.is_used, changes))

    @contextlib.contextmanager
    def holding(self, key: str) -> Iterator[None]:
        """Keep an environment during the body."""
        self._held[key] += 1
        try:
            yield
        finally:
            self._held[key] -= 1
            if not self._held[key]:
                del self._held[key]

    async def ensure(
        self,
        principal: Principal,
        digest: str,
        source: int | bytes | None,
        isolation: Isolation = Isolation.KERNEL,
    ) -> str:
        """Return the key of an environment; make it from ``source``, which is closed, if it is not there.

        An image is made only if this node can start tasks with this ``isolation`` in it.

        Raise MissingEnvironmentError if it is not there and has no source, NotSupportedError if it cannot be
        used on this node, InvalidError for a source that is no archive with this digest, and NoSpaceError
        without room.
        """
        key = key_for(principal, digest)
        archive = None if source is None else ArchiveReader(source)
        try:
            if not self._bytes_max:
                raise _refused(
                    "this node has no environments: its settings say environments_bytes = 0. Leave packages "
                    "out, or ask its owner for a larger bound"
                )
            if key not in self._environments:
                async with self._building:
                    if key not in self._environments:
                        await self._make(principal, digest, key, archive, isolation)
        finally:
            if archive is not None:
                archive.close()
        about = self._environments[key].about
        _require_machine(about)
        if about.base:
            self._image_below(principal, about.base)
            self.note_use(_base_key(about))
        self.note_use(key)
        return key

    def note_use(self, key: str) -> None:
        """Note that a task begins or ends in an environment. Do nothing if there is none with this key."""
        environment = self._environments.get(key)
        if environment is not None:
            environment.used_ns = time.time_ns()
            with contextlib.suppress(OSError):
                os.utime(self._folder / key / _ABOUT)

    async def prune(self, digest: str = "", *, unused_s: float = 0) -> list[Environment]:
        """Remove unused environments, and return them: those of a digest, or unused for some seconds."""
        before = time.time_ns() - round(unused_s * _NS_PER_S)
        removed: list[Environment] = []
        for environment in self.all:
            is_named = not digest or environment.about.digest == digest
            is_old = not unused_s or environment.used_ns <= before
            if is_named and is_old and await self._remove(environment):
                removed.append(environment)
        return removed

    # -- making -----------------------------------------------------------------------------------
    async def _make(
        self,
        principal: Principal,
        digest: str,
        key: str,
        archive: ArchiveReader | None,
        isolation: Isolation,
    ) -> None:
        if archive is None:
            raise MissingEnvironmentError(
                f"this node has no {name_for(digest)} of this user: build it again, with `dios env build`, "
                "or make a new sandbox if it is an image",
                call="run",
            )
        try:
            manifest = await trio.to_thread.run_sync(unpacking.read_manifest, archive)
            with contextlib.ExitStack() as held:
                image = None
                if isinstance(manifest, ChangeManifest):
                    image = self._image_below(principal, manifest.base)
                    held.enter_context(self.holding(key_for(principal, manifest.base)))
                about = _about(principal, digest, manifest, image)
                self._check(about, isolation)
                await self._make_room(manifest)
                await self._write(archive, manifest, Environment(key, about, about.created_ns))
        except OSError as error:
            raise NoSpaceError(f"cannot write an environment: {error.strerror}", call="run") from error

    def _image_below(self, principal: Principal, digest: str) -> EnvironmentRecord:
        """Return the record of the image below changes. Raise MissingEnvironmentError, InvalidError."""
        image = self._environments.get(key_for(principal, digest))
        if image is None:
            raise MissingEnvironmentError(
                f"this node has not the image {name_for(digest)} of this user, of which these are changes: "
                "make a new sandbox from the snapshot",
                call="run",
            )
        if image.about.image is None or image.about.base:
            raise InvalidError("the archive has changes to something else than an image", call="run")
        return image.about

    async def _write(self, archive: ArchiveReader, manifest: AnyManifest, environment: Environment) -> None:
        """Write an environment; a cancellation stops that at the next file, and nothing is left."""
        key, about, stop = environment.key, environment.about, threading.Event()
        failure: DiosError | OSError | None = None
        temporary = self._folder / _TEMPORARY / f"{os.getpid()}-{next(self._numbers)}"
        base = _base_key(about)
        image = self.packages_of(base) if base else None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_set_at_cancellation, stop)
            try:
                if await trio.to_thread.run_sync(
                    _write, archive, manifest, about, temporary, self._folder / key, stop, image
                ):
                    self._environments[key] = environment
            except (DiosError, OSError) as error:
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        await trio.lowlevel.checkpoint_if_cancelled()
        extra = {"environment": about.digest, "bytes": about.size, "files": about.files}
        _log.info("an environment was made", extra=extra)

    def _check(self, about: EnvironmentRecord, isolation: Isolation) -> None:
        _require_machine(about)
        if about.image is not None:
            # Before anything is written that no task could use.
            if isolation is Isolation.GVISOR:
                find_gvisor(self._gvisor_runtime)
            else:
                known_runtimes(self._container_runtime)
        self._folder.mkdir(_MODE, parents=True, exist_ok=True)
        if os.statvfs(self._folder).f_flag & os.ST_NOEXEC:
            raise _refused(
                "this node can have no environments: its data directory is on a file system that is mounted "
                "noexec. Ask its owner for another one"
            )

    async def _make_room(self, manifest: AnyManifest) -> None:
        """Remove unused environments until one fits. Raise NoSpaceError if it does not."""
        needed = manifest.disk_bytes()
        if needed > self._bytes_max:
            raise NoSpaceError(
                f"the environment takes {_mib(needed)}, and this node keeps {_mib(self._bytes_max)} of them: "
                "use fewer packages, or ask its owner for a larger environments_bytes",
                call="run",
            )
        for environment in self.all:
            if self._has_room(needed):
                return
            await self._remove(environment)
        if not self._has_room(needed):
            raise NoSpaceError(
                f"the environment takes {_mib(needed)}, and those with running tasks have {_mib(self.size)} "
                f"of the {_mib(self._bytes_max)} of this node (environments_bytes): try it again when these "
                "have ended",
                call="run",
            )
        free = shutil.disk_usage(self._folder).free
        if free < 2 * needed:
            raise NoSpaceError(
                f"the environment takes {_mib(needed)}, and the disk of this node has only {_mib(free)}: "
                "free some space",
                call="run",
            )

    def _has_room(self, needed: int) -> bool:
        is_few = len(self._environments) < limits.ENVIRONMENTS_MAX
        return is_few and self.size + needed <= self._bytes_max

    async def _remove(self, environment: Environment) -> bool:
        """Remove an environment. Return False, and keep it, while it is used."""
        if self.is_used(environment.key) or self._environments.pop(environment.key, None) is None:
            return False
        waste = self._folder / _TEMPORARY / f"{os.getpid()}-{next(self._numbers)}"
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(_delete, self._folder / environment.key, waste)
        _log.info("an environment was removed", extra={"environment": environment.about.digest})
        return True


def _about_at(place: Path) -> EnvironmentRecord | None:
    """Return the record of an environment, or None if it is not complete or of another release."""
    try:
        if not (place / _PACKAGES).is_dir():
            return None
        with (place / _ABOUT).open("rb") as file:
            about = msgspec.json.decode(file.read(_ABOUT_BYTES_MAX), type=EnvironmentRecord)
    except (OSError, msgspec.DecodeError):
        return None
    return about if about.version == _ABOUT_VERSION else None


def _about(
    principal: Principal, digest: str, manifest: AnyManifest, below: EnvironmentRecord | None
) -> EnvironmentRecord:
    """Return the record of an environment; ``below`` is that of the image to which it has changes."""
    image: ImageSettings | None = None
    packages: tuple[Package, ...] = ()
    if isinstance(manifest, Manifest):
        packages, python, files = manifest.packages, manifest.python, len(manifest.files)
    elif isinstance(manifest, ChangeManifest):
        assert below is not None, "its image was looked up"  # noqa: S101 - by the caller
        image, python, files = below.image, below.python, len(manifest.entries)
    else:
        image, python, files = manifest.settings, manifest.machine, len(manifest.entries)
    return EnvironmentRecord(
        _ABOUT_VERSION,
        principal,
        digest,
        python,
        manifest.disk_bytes(),
        files,
        packages,
        time.time_ns(),
        image,
        "" if below is None else below.digest,
    )


def _base_key(about: EnvironmentRecord) -> str:
    """Return the key of the image to which an environment has changes, or an empty text."""
    return key_for(Principal(about.principal), about.base) if about.base else ""


def _require_machine(about: EnvironmentRecord) -> None:
    if about.image is not None:
        machine = os.uname().machine
        if about.python != machine:
            raise _refused(f"the image is for {about.python}, and this node is {machine}: use another image")
    elif about.python != python_here():
        raise _refused(
            f"the environment is for {about.python}, and this node has {python_here()}: build it with the "
            "Python of the node"
        )


def _refused(reason: str) -> NotSupportedError:
    return NotSupportedError(reason, call="run")


def _mib(size: int) -> str:
    return f"{size / limits.MIB:,.1f} MiB"


async def _set_at_cancellation(stop: threading.Event) -> None:
    try:
        await trio.sleep_forever()
    finally:
        stop.set()


def _write(
    archive: ArchiveReader,
    manifest: AnyManifest,
    about: EnvironmentRecord,
    temporary: Path,
    place: Path,
    stop: threading.Event,
    image: Path | None,
) -> bool:
    """Make an environment at ``place``. Leave nothing, and return False or raise, if that fails."""
    try:
        temporary.mkdir(parents=True)
        is_complete = unpacking.unpack(archive, manifest, about.digest, temporary / _PACKAGES, image, stop)
        if is_complete:
            (temporary / _ABOUT).write_bytes(msgspec.json.encode(about))
            _sync(temporary)
            place.parent.mkdir(exist_ok=True)
            temporary.rename(place)
        return is_complete
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Write the files of a folder to the disk: a power cut must not leave a complete one with empty files."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        linux_calls.sync_file_system(number)
    finally:
        os.close(number)


def _delete(place: Path, waste: Path) -> None:
    """Take an environment out of use at once, and then remove its files."""
    try:
        waste.parent.mkdir(exist_ok=True)
        place.rename(waste)
    except OSError:
        waste = place
    shutil.rmtree(waste, ignore_errors=True)

"""The database of a store: opening it safely, its schema version, and its errors as ours.

Not for: rows (``schema``), or what is written when (``lmdb_store``). Those two and ``check`` are the only
modules that know LMDB. A database that is cut short is refused here: walking it would end the process.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import lmdb

from dios import limits
from dios.errors import DamagedError, DiosError, InvalidError, NoSpaceError, OutOfMemoryError
from dios.store import schema
from dios.store.directory import cannot_write
from dios.store.extents import sync_folder

OBJECTS: Final = b"objects"
META: Final = b"meta"
SCHEMA_KEY: Final = b"schema"

_DATABASE_FILE: Final = "data.mdb"
_LOCK_FILE: Final = "lock.mdb"
_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NO_MEMORY: Final = frozenset({errno.ENOMEM, errno.EMFILE, errno.ENFILE})
_NOT_ALLOWED: Final = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_BAD_SOURCE: Final = frozenset({errno.EBADF, errno.EISDIR, errno.ESPIPE})


def folder_of(path: Path) -> Path:
    """Where the database of the store in ``path`` lies."""
    return path / "store"


def holds_store(path: Path) -> bool:
    """Whether there is a database in the data directory ``path``."""
    return (folder_of(path) / _DATABASE_FILE).exists()


def open_environment(path: Path, *, map_bytes: int) -> lmdb.Environment:
    """Open the database of the store in ``path`` for writing, or make it; its two tables come after.

    Raises lmdb.Error, OSError, or DamagedError when the file is shorter than what it says of itself.
    """
    folder = folder_of(path)
    fresh = not holds_store(path)
    # LMDB would make the folder with the files' mode, and only root can enter a folder without x.
    folder.mkdir(mode=0o700, exist_ok=True)
    # Memory stays initialised (the default), so that no secret of this process gets into free pages.
    env = lmdb.open(str(folder), map_size=map_bytes, max_dbs=2, mode=0o600, max_spare_txns=2, readahead=False)
    try:
        refuse_truncated(env, path)
        _allocate_lock_file(folder)
        if fresh:
            sync_folder(folder)
            sync_folder(path)
    except BaseException:
        env.close()
        raise
    return env


def open_for_reading(path: Path) -> lmdb.Environment:
    """Open the database of the store in ``path`` without writing a byte; the caller holds its directory."""
    env = lmdb.open(
        str(folder_of(path)), create=False, readonly=True, lock=False, max_dbs=2, max_spare_txns=1
    )
    try:
        refuse_truncated(env, path)
    except BaseException:
        env.close()
        raise
    return env


def refuse_truncated(env: lmdb.Environment, path: Path) -> None:
    """Raise DamagedError when the file lacks pages that stand in its tree.

    Reading them would end the process. A shorter file alone is no damage: pages that a transaction took
    and gave back before its end are counted, and never written.
    """
    pages = int(env.info()["last_pgno"]) + 1
    page_bytes = int(env.stat()["psize"])
    file = folder_of(path) / _DATABASE_FILE
    size = file.stat().st_size
    if size < pages * page_bytes and (problems := structure_problems(path)):
        raise DamagedError(
            f"{file} is cut short: {size} of {pages * page_bytes} bytes are there ({problems[0]}); "
            "see docs/recovery.md, 'The database cannot be read'"
        )


def structure_problems(path: Path) -> list[str]:
    """What is wrong with the pages of the database of the store in ``path``; empty when each is sound.

    It reads the file as bytes and never opens it, so that no damage can end the process. Empty too where
    the installed lmdb has no such pass; ``refuse_truncated`` is then what stands before a walk.
    """
    try:
        verifier = importlib.import_module("lmdb.verify")
    except ImportError:
        return []
    try:
        return [str(problem) for problem in verifier.verify(str(folder_of(path)))]
    except verifier.VerifyError as error:
        return [str(error)]


def has_schema(env: lmdb.Environment, txn: lmdb.Transaction[bytes], meta: lmdb._Database, path: Path) -> bool:
    """Whether the schema version is there and known; ``txn`` is of the table ``meta``.

    False for a new store. Raises NotSupportedError for a newer one, DamagedError when it was lost.
    """
    stored = txn.get(SCHEMA_KEY)
    if stored is not None:
        schema.decode_schema(stored)
        return True
    if txn.stat(meta)["entries"] or env.stat()["entries"] > 1:
        raise DamagedError(
            f"the store in {path} has lost its schema version; `dios-node check --repair` can write it again"
        )
    return False


@contextmanager
def translate_errors(path: Path, *, in_service: bool = False) -> Iterator[None]:
    """Errors of the system and of LMDB as ours, which say what to do; see ``dios_error``."""
    try:
        yield
    except (OSError, lmdb.Error) as error:
        raise dios_error(error, path, in_service=in_service) from error


def has_stopped(env: lmdb.Environment) -> bool:
    """Whether a commit failed at its last page: LMDB then refuses everything.

    Reads too, until it is opened anew.
    """
    try:
        env.begin().abort()
    except lmdb.PanicError:
        return True
    except lmdb.Error:
        return False
    return False


def stopped_error(error: BaseException) -> DamagedError:
    """The error for a store that cannot go on, ``error`` being the first or a later one."""
    text = _reason(error) if isinstance(error, OSError | lmdb.Error) else type(error).__name__
    return DamagedError(
        f"the database of the store stopped in the middle of a commit ({text}): restart the node; "
        "only then it is known whether that change took place"
    )


def dios_error(error: OSError | lmdb.Error, path: Path, *, in_service: bool = False) -> DiosError:
    """The error for a store in ``path`` that did not do what it was asked.

    It names the path to who opens the store. What is said ``in_service`` may be told to a confined task,
    which is not to learn how the machine's files are called.
    """
    number = error.errno if isinstance(error, OSError) else error.code
    text = _reason(error)
    where = "the node's data directory (`dios-node status` shows it)" if in_service else str(path)
    if isinstance(error, lmdb.PanicError):
        return stopped_error(error)
    if isinstance(error, lmdb.MapFullError | lmdb.TxnFullError):
        return NoSpaceError(
            f"the index of the store in {where} is full: remove objects, "
            "or start the node with a larger --map-bytes; reading goes on"
        )
    # LMDB tells of a write that a full disk cut short as of any other: as an error of the device.
    if number in _NO_SPACE or (isinstance(error, lmdb.Error) and number == errno.EIO and _is_full(path)):
        return NoSpaceError(
            f"the disk of {where} is full ({text}): remove objects, or free space there; reading goes on"
        )
    if number in _NO_MEMORY:
        return OutOfMemoryError(f"the store has no memory or descriptors left ({text})")
    if number in _NOT_ALLOWED:
        if in_service:
            return DamagedError(f"nothing can be written in {where}: {text}; reading goes on")
        return DamagedError(cannot_write(path, text))
    if isinstance(error, OSError) and number in _BAD_SOURCE:
        return InvalidError(f"the file to store cannot be read ({text})")
    return DamagedError(f"the device or database of the store in {where} failed ({text})")


def _reason(error: OSError | lmdb.Error) -> str:
    """The system's words for an error, LMDB's class where it is none of the system's."""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return os.strerror(error.code) if error.code > 0 else type(error).__name__


def _is_full(path: Path) -> bool:
    """Whether the disk under ``path`` has not even room for the pages of a small change."""
    try:
        space = os.statvfs(path)
    except OSError:
        return False
    return space.f_bavail * space.f_frsize < limits.STORE_FREE_BYTES_MIN


def _allocate_lock_file(folder: Path) -> None:
    # LMDB maps this file and makes it with a hole: on a disk that has filled up meanwhile, the first touch
    # of a page without a block ends the process with SIGBUS.
    with contextlib.suppress(OSError):
        fd = os.open(folder / _LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.posix_fallocate(fd, 0, os.fstat(fd).st_size)
        finally:
            os.close(fd)

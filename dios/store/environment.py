"""The LMDB database of a store: opening it safely, its schema version, and the translation of its errors.

Only this module, ``lmdb_store``, ``check`` and ``repair`` use LMDB. A truncated database is refused here,
because reading it would end the process. ``schema`` has the format of the rows.
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
from dios.store.extents import make_folders, sync_folder

OBJECTS: Final = b"objects"
META: Final = b"meta"
INDEX: Final = b"index"
SCHEMA_KEY: Final = b"schema"

EXTENTS: Final = "extents"
"""The folder of the extents in a data directory."""

_DATABASE_FILE: Final = "data.mdb"
_LOCK_FILE: Final = "lock.mdb"
_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NO_MEMORY: Final = frozenset({errno.ENOMEM, errno.EMFILE, errno.ENFILE})
_NOT_ALLOWED: Final = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_BAD_SOURCE: Final = frozenset({errno.EBADF, errno.EISDIR, errno.ESPIPE})


def folder_of(path: Path) -> Path:
    """Return the folder of the database of the store in ``path``."""
    return path / "store"


def holds_store(path: Path) -> bool:
    """Return True if there is a database in the data directory ``path``."""
    return (folder_of(path) / _DATABASE_FILE).exists()


def prepare_new(path: Path) -> None:
    """Create the folders for extents of a new store. A daemon does this while it loads its modules.

    Do nothing for a store with a database, or if it fails: opening the store then reports the reason.
    """
    with contextlib.suppress(OSError):
        if not holds_store(path):
            make_folders(path / EXTENTS)


def open_environment(path: Path, *, map_bytes: int) -> lmdb.Environment:
    """Open the database of the store in ``path`` for writing, or create it; its two tables are opened later.

    Raises lmdb.Error, OSError, or DamagedError if the file is shorter than its header says.
    """
    folder = folder_of(path)
    fresh = not holds_store(path)
    # LMDB would create the folder with the mode of the files, and only root can enter a folder without x.
    folder.mkdir(mode=0o700, exist_ok=True)
    # Memory is initialised (the default), so that no secret of this process gets into free pages.
    env = lmdb.open(str(folder), map_size=map_bytes, max_dbs=3, mode=0o600, max_spare_txns=2, readahead=False)
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
    """Open the database of the store in ``path`` read-only; the caller holds its directory."""
    env = lmdb.open(
        str(folder_of(path)), create=False, readonly=True, lock=False, max_dbs=3, max_spare_txns=1
    )
    try:
        refuse_truncated(env, path)
    except BaseException:
        env.close()
        raise
    return env


def refuse_truncated(env: lmdb.Environment, path: Path) -> None:
    """Raise DamagedError if pages of the database's tree are missing in its file.

    Reading them would end the process. A shorter file alone is no damage: pages that a transaction
    allocated and freed before its end are counted, and never written.
    """
    pages = int(env.info()["last_pgno"]) + 1
    page_bytes = int(env.stat()["psize"])
    file = folder_of(path) / _DATABASE_FILE
    size = file.stat().st_size
    if size < pages * page_bytes and (problems := structure_problems(path)):
        raise DamagedError(
            f"{file} is truncated: it has {size} of {pages * page_bytes} bytes ({problems[0]}). "
            "See docs/recovery.md, 'The database cannot be read'."
        )


def structure_problems(path: Path) -> list[str]:
    """Return the faults of the pages of the database of the store in ``path``; empty if all are sound.

    The file is read as bytes and never opened as a database, so that no damage can end the process. Also
    empty if the installed lmdb has no such check; then only ``refuse_truncated`` precedes the reading.
    """
    try:
        verifier = importlib.import_module("lmdb.verify")
    except ImportError:
        return []
    try:
        return [str(problem) for problem in verifier.verify(str(folder_of(path)))]
    except verifier.VerifyError as error:
        return [str(error)]


def read_schema(env: lmdb.Environment, txn: lmdb.Transaction[bytes], meta: lmdb._Database, path: Path) -> int:
    """Return the schema version, one of those that this release reads. ``txn`` is of the table ``meta``.

    Return 0 for a new store. Raises NotSupportedError for a newer version, DamagedError for a lost one.
    """
    stored = txn.get(SCHEMA_KEY)
    if stored is not None:
        return schema.decode_schema(stored)
    if txn.stat(meta)["entries"] or env.stat()["entries"] > 1:
        raise DamagedError(
            f"the store in {path} has lost its schema version. Run `dios-node check --repair` to restore it."
        )
    return 0


@contextmanager
def translate_errors(path: Path, *, in_service: bool = False) -> Iterator[None]:
    """Translate errors of the system and of LMDB into a DiosError with a remedy; see ``dios_error``."""
    try:
        yield
    except (OSError, lmdb.Error) as error:
        raise dios_error(error, path, in_service=in_service) from error


def has_stopped(env: lmdb.Environment) -> bool:
    """Return True if a commit failed at its last page.

    LMDB then refuses every call, reads too, until the database is opened again.
    """
    try:
        env.begin().abort()
    except lmdb.PanicError:
        return True
    except lmdb.Error:
        return False
    return False


def stopped_error(error: BaseException) -> DamagedError:
    """Return the error for a store that cannot continue after ``error`` or an earlier one."""
    text = _reason(error) if isinstance(error, OSError | lmdb.Error) else type(error).__name__
    return DamagedError(
        f"the database of the store stopped in the middle of a commit ({text}). Restart the node; "
        "then read whether that change took place."
    )


def dios_error(error: OSError | lmdb.Error, path: Path, *, in_service: bool = False) -> DiosError:
    """Return the DiosError for a failed operation on the store in ``path``.

    The message names the path only if the store is being opened. A message ``in_service`` may reach a
    sandboxed task, which must not learn the names of the machine's files.
    """
    number = error.errno if isinstance(error, OSError) else error.code
    text = _reason(error)
    place = "the node's data directory (`dios-node status` shows it)" if in_service else str(path)
    if isinstance(error, lmdb.PanicError):
        return stopped_error(error)
    if isinstance(error, lmdb.MapFullError | lmdb.TxnFullError):
        return NoSpaceError(
            f"the index of the store in {place} is full. Remove objects, "
            "or start the node with a larger --map-bytes. Reading still works."
        )
    # LMDB reports a write that failed on a full disk like any other, as an I/O error.
    if number in _NO_SPACE or (isinstance(error, lmdb.Error) and number == errno.EIO and _is_full(path)):
        return NoSpaceError(
            f"the disk of {place} is full ({text}). Remove objects, or free space there. Reading still works."
        )
    if number in _NO_MEMORY:
        return OutOfMemoryError(
            f"the store has no memory or descriptors left ({text}). End some tasks, then try again."
        )
    if number in _NOT_ALLOWED:
        if in_service:
            return DamagedError(f"cannot write in {place}: {text}. Reading still works.")
        return DamagedError(cannot_write(path, text))
    if isinstance(error, OSError) and number in _BAD_SOURCE:
        return InvalidError(f"cannot read the file to store ({text})")
    return DamagedError(f"the device or database of the store in {place} failed ({text})")


def _reason(error: OSError | lmdb.Error) -> str:
    """Return the system's text for an error, or LMDB's class if it is not a system error."""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return os.strerror(error.code) if error.code > 0 else type(error).__name__


def _is_full(path: Path) -> bool:
    """Return True if the disk of ``path`` has no room for the pages of a small change."""
    try:
        space = os.statvfs(path)
    except OSError:
        return False
    return space.f_bavail * space.f_frsize < limits.STORE_FREE_BYTES_MIN


def _allocate_lock_file(folder: Path) -> None:
    # LMDB maps this file, which has a hole. On a full disk, the first access to a page without a block would
    # end the process with SIGBUS.
    with contextlib.suppress(OSError):
        fd = os.open(folder / _LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.posix_fallocate(fd, 0, os.fstat(fd).st_size)
        finally:
            os.close(fd)

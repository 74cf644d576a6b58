"""The errors of backups."""

from __future__ import annotations

from typing import ClassVar

from dios.errors import Code, DiosError


class DamagedBackupError(DiosError):
    """Stored bytes of a backup are missing, or are not those that were stored.

    Do not trust the store. Restore an older snapshot, or another copy of the backup.
    """

    # Not a DamagedError, whose next step is to look at the node.
    code: ClassVar[Code] = Code.EIO


class TargetError(DiosError):
    """The store of a backup cannot be used: it does not answer, refuses, or its file system is not installed.

    Correct the URL, the credentials or the connection, then run the command again.
    """

    code: ClassVar[Code] = Code.EHOSTUNREACH

"""The register of enrolled principals as one node has stored it (file ``principals`` of its identity).

The key that signed the first register is the administrator's, unless the node's settings name another one.
Later registers count if that key signed them and their number is higher, whoever passes them on.
``dios.wire.mandates`` has the format.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import trio

from dios.errors import DamagedError, NotPermittedError, ProtocolError
from dios.transport.identity import durable_files
from dios.wire.mandates import Register, read_register

_FILE: Final = "principals"


class PrincipalRegister:
    """The stored register of a node in the cluster with this digest of its authority's certificate.

    ``administrator`` is the only key that may sign it; if it is empty, that of the first register.
    """

    def __init__(self, folder: Path, cluster: bytes, administrator: bytes = b"") -> None:
        """Read the file, which may be absent. Raise DamagedError."""
        self._path: Final = folder / _FILE
        self._cluster: Final = cluster
        self._administrator: Final = administrator
        self._storing: Final = trio.Lock()
        self.stored: Register | None = None
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return
        try:
            stored = read_register(data)
            self._check(stored)
        except (ProtocolError, NotPermittedError) as error:
            raise DamagedError(
                f"cannot use the register of principals in {self._path}: {error}. Remove the file: the other "
                "nodes of the cluster send it again."
            ) from None
        self.stored = stored

    def _check(self, register: Register) -> None:
        """Raise ProtocolError for another cluster's register, NotPermittedError for another signer's."""
        if register.cluster != self._cluster:
            raise ProtocolError("the register of principals is of another cluster")
        administrator = self._administrator or (b"" if self.stored is None else self.stored.administrator)
        if administrator and register.administrator != administrator:
            raise NotPermittedError(
                f"the register of principals was signed by {register.administrator.hex()}, and not by this "
                f"cluster's administrator, whose key is {administrator.hex()}"
            )

    def is_known(self, data: bytes) -> bool:
        """Return True if this is the stored register."""
        return self.stored is not None and self.stored.data == data

    async def accept(self, data: bytes) -> Register | None:
        """Store a register; return it if it is newer than the stored one, else None.

        Raises ProtocolError if it is malformed or of another cluster, NotPermittedError if another key than
        the administrator's signed it, OSError if it cannot be stored.
        """
        async with self._storing:
            register = read_register(data)
            self._check(register)
            if self.stored is not None and self.stored.order >= register.order:
                return None
            await trio.to_thread.run_sync(durable_files.write, self._path, data)
            self.stored = register
            return register

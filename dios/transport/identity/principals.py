"""The register of enrolled principals that one node uses and stores (file ``principals`` of its identity).

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
    """The register of a node in the cluster with this digest of its authority's certificate.

    ``administrator`` is the only key that may sign it; if it is empty, that of the first register.
    """

    def __init__(self, folder: Path, cluster: bytes, administrator: bytes = b"") -> None:
        """Read the file, which may be absent. Raise DamagedError."""
        self._path: Final = folder / _FILE
        self._cluster: Final = cluster
        self._administrator: Final = administrator
        self._storing: Final = trio.Lock()
        self.present: Register | None = None
        self._saved: Register | None = None
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
        self.present = self._saved = stored

    def _check(self, register: Register) -> None:
        """Raise ProtocolError for another cluster's register, NotPermittedError for another signer's."""
        if register.cluster != self._cluster:
            raise ProtocolError("the register of principals is of another cluster")
        administrator = self._administrator or (b"" if self.present is None else self.present.administrator)
        if administrator and register.administrator != administrator:
            raise NotPermittedError(
                f"the register of principals was signed by {register.administrator.hex()}, and not by this "
                f"cluster's administrator, whose key is {administrator.hex()}"
            )

    def is_known(self, data: bytes) -> bool:
        """Return True if this is the register that is used."""
        return self.present is not None and self.present.data == data

    def accept(self, data: bytes) -> Register | None:
        """Use a register, which ``save`` stores; return it if it is newer than the present one, else None.

        It is used at once, because it may remove a key. Raises ProtocolError if it is malformed or of another
        cluster, NotPermittedError if another key than the administrator's signed it.
        """
        register = read_register(data)
        self._check(register)
        if self.present is not None and self.present.order >= register.order:
            return None
        self.present = register
        return register

    async def save(self) -> None:
        """Store the register that is used. Raises OSError; it is used all the same."""
        async with self._storing:
            register = self.present
            if register is not None and register is not self._saved:
                await trio.to_thread.run_sync(durable_files.write, self._path, register.data)
                self._saved = register

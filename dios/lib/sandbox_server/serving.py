"""Serves sandboxes at an address until a signal ends that, and then ends all of them."""

from __future__ import annotations

import ipaddress
import signal
import ssl
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

import trio

from dios.errors import InvalidError
from dios.host.process.descriptor_limit import raise_descriptor_limit
from dios.lib.sandbox_server.holder import SandboxHolder
from dios.lib.sandbox_server.http import Server
from dios.lib.sandbox_server.keys import KeyFile
from dios.lib.sandbox_server.routes import Routes
from dios.lib.sandbox_server.templates import ServerSettings
from dios.trusted_files import require_trusted
from dios.wire.addresses import listen_advice

ADDRESS: Final = "127.0.0.1"
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_BACKLOG: Final = 128


class Place(NamedTuple):
    """The place where the server listens, and the names by which clients may address it."""

    address: str
    port: int
    names: tuple[str, ...] = ()
    certificate: Path | None = None
    private_key: Path | None = None

    def context(self) -> ssl.SSLContext | None:
        """Return the context of TLS, None without a certificate.

        Raises InvalidError for an address outside of this machine without one, and for files that fit not.
        """
        try:
            is_local = ipaddress.ip_address(self.address).is_loopback
        except ValueError:
            raise InvalidError(f"--address is an IP address, not {self.address!r}") from None
        if self.certificate is None or self.private_key is None:
            if self.certificate or self.private_key:
                raise InvalidError("TLS needs both: give --certificate and --private-key")
            if not is_local:
                raise InvalidError(
                    f"{self.address} is served with TLS alone, because keys could be read on the "
                    "way: give --certificate and --private-key, or leave out --address"
                )
            return None
        require_trusted(self.private_key, "the private key of the server")
        try:
            is_private = not stat.S_IMODE(self.private_key.stat().st_mode) & 0o077
        except OSError as error:
            raise InvalidError(f"cannot read {self.private_key}: {error.strerror}") from None
        if not is_private:
            raise InvalidError(
                f"other users may read the private key {self.private_key}: make a new one after "
                f"`chmod 600 {self.private_key}`"
            )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(self.certificate, self.private_key, password=_no_password)
        except (OSError, ssl.SSLError, ValueError) as error:
            raise InvalidError(f"the certificate and its key cannot be used: {error}") from None
        return context

    def hosts(self, port: int) -> frozenset[str]:
        """Return the values of ``Host`` that are served."""
        names: Iterable[str] = (*self.names, self.address)
        if ipaddress.ip_address(self.address).is_loopback:
            names = (*names, "localhost")
        texts = [f"[{name}]" if ":" in name else name.lower() for name in names]
        usual = 443 if self.certificate else 80
        return frozenset([*(f"{text}:{port}" for text in texts), *(texts if port == usual else ())])


def serve(
    settings: ServerSettings,
    place: Place,
    node: str | Path | None,
    keys: KeyFile,
    listening: Callable[[int], None],
) -> int:
    """Serve until a signal comes, and return its number; ``listening`` is called with the port.

    Raises InvalidError for an address that cannot be used, and the errors of a template's sandbox.
    """
    context = place.context()
    raise_descriptor_limit()

    async def main() -> int:
        try:
            listeners = await trio.open_tcp_listeners(place.port, host=place.address, backlog=_BACKLOG)
        except OSError as error:
            raise InvalidError(
                f"cannot listen on {place.address}, port {place.port}: {error.strerror}. "
                f"{listen_advice(error)}"
            ) from None
        listener = listeners[0]
        port: int = listener.socket.getsockname()[1]
        holder = SandboxHolder(settings, keys, node)
        await holder.try_templates()  # wrong settings are reported now
        ended_by: int = signal.SIGTERM
        async with trio.open_nursery() as nursery:
            with trio.open_signal_receiver(*_ENDING) as signals:
                await nursery.start(holder.run)
                nursery.start_soon(Server(Routes(holder), place.hosts(port), context).serve, listener)
                listening(port)
                async for number in signals:
                    ended_by = number
                    break
                nursery.cancel_scope.cancel()
        return ended_by

    return trio.run(main)


def _no_password() -> bytes:
    raise ValueError("the private key has a password: store one without")

"""The host's side of a network stream: a socket, and a pump for each direction between it and a ring.

The pumps are in ``dios.host.network.tcp`` and ``dios.host.network.udp``.
"""

from __future__ import annotations

import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import trio

from dios import limits
from dios.errors import DiosError
from dios.host.handover import format as form
from dios.host.handover.gate import Gate
from dios.transport.rings.waiting import RingEnd, RingReader, RingWriter
from dios.wire.types import Mode

_log: Final = logging.getLogger(__name__)


class SocketBackend(ABC):
    """A socket behind two rings, which is closed when its object is gone and both pumps have ended.

    ``broke`` is called once, with the system's error. ``closed`` is called when the socket was closed.
    """

    def __init__(
        self,
        sock: trio.socket.SocketType,
        nursery: trio.Nursery,
        broke: Callable[[OSError], None],
        closed: Callable[[], None],
        gate: Gate | None = None,
    ) -> None:
        self.socket: Final = sock
        self.nursery: Final = nursery
        self.gate: Final = Gate() if gate is None else gate
        self.busy = False
        """True while something is on its way that another program could not continue."""
        self._ends: Final[dict[Mode, RingEnd]] = {}
        self._broke: Final = broke
        self._closed: Final = closed
        self._in: Final = trio.CancelScope()
        self._out: Final = trio.CancelScope()
        self._pumps = 0
        self._sending = False
        self._over = False
        self._reported = False

    def end_attached(self, mode: Mode, end: RingEnd) -> None:
        """Start the pump of a direction: a task attached to it."""
        if self._over or self.nursery.cancel_scope.cancel_called:
            end.close()
            return
        self._pumps += 1
        self._ends[mode] = end
        if mode is Mode.READ and isinstance(end, RingWriter):
            self.nursery.start_soon(self._run_in, end, name="socket in")
        elif isinstance(end, RingReader):
            self._sending = True
            self.nursery.start_soon(self._run_out, end, name="socket out")

    def hand_over(self) -> tuple[tuple[form.Pump, ...], bool]:
        """Describe the pumps for the successor of this process, and return True if a failure was reported."""
        return tuple(form.Pump(mode, *end.hand_over()) for mode, end in self._ends.items()), self._reported

    def take_over(self, ends: Iterable[tuple[Mode, RingEnd]], *, reported: bool) -> None:
        """Continue with the pumps of the predecessor."""
        self._reported = reported
        for mode, end in ends:
            self.end_attached(mode, end)

    def end_closed(self, mode: Mode) -> None:
        """Note that no task will attach to a direction any more."""
        if mode is Mode.WRITE:
            self.finish()

    def close(self) -> None:
        """Close after the object is gone; written bytes are still sent, for at most NETWORK_LINGER_MS_MAX."""
        self._over = True
        self._in.cancel()
        if self._reported:
            self._out.cancel()
        elif self._sending:
            self._out.deadline = trio.current_time() + limits.NETWORK_LINGER_MS_MAX / 1000
        self._close_when_idle()

    def abort(self) -> None:
        """Close at once, at the node's end."""
        self._over = True
        self._in.cancel()
        self._out.cancel()
        self._close_when_idle()

    @abstractmethod
    async def inbound(self, ring: RingWriter) -> None:
        """Move bytes from the socket into the ring until either ends. Raise OSError or DiosError."""

    @abstractmethod
    async def outbound(self, ring: RingReader) -> None:
        """Move bytes from the ring to the socket until either ends. Raise OSError or DiosError."""

    @abstractmethod
    def finish(self) -> None:
        """Notify the peer, if there is one, that no more bytes will be sent."""

    @abstractmethod
    def reset(self) -> None:
        """Notify the peer, if there is one, that the remaining bytes will not be sent."""

    async def _run_in(self, ring: RingWriter) -> None:
        with self._pumping(Mode.READ, ring), self._in:
            try:
                await self._unless_failed()
                await self.inbound(ring)
            except DiosError:
                raise
            except OSError as error:
                await self._report_and_wait(error)

    async def _run_out(self, ring: RingReader) -> None:
        with self._pumping(Mode.WRITE, ring), self._out:
            try:
                await self._unless_failed()
                await self.outbound(ring)
                self.finish()
            except DiosError:
                raise
            except OSError as error:
                await self._report_and_wait(error)
        self._sending = False
        if self._out.cancelled_caught:
            self.reset()

    @contextlib.contextmanager
    def _pumping(self, mode: Mode, ring: RingEnd) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a task that damages its ring loses this stream alone
            self.fail(error)
        finally:
            ring.close()
            self._ends.pop(mode, None)
            self._pumps -= 1
            self._close_when_idle()

    def fail(self, error: Exception) -> None:
        """Report that an error ends the stream; log it if no socket should raise it."""
        self.reset()
        self._report(os_error_of(error))

    async def _unless_failed(self) -> None:
        """Wait as after a failure if the predecessor has reported one."""
        if self._reported:
            await trio.sleep_forever()

    async def _report_and_wait(self, error: OSError) -> None:
        self._report(error)
        if not self._over:
            # Keep the ring open until the core has published the failure on the public page.
            await trio.sleep_forever()

    def _report(self, error: OSError) -> None:
        if not self._reported and not self._over:
            self._reported = True
            self._broke(error)

    def _close_when_idle(self) -> None:
        if self._over and not self._pumps and self.socket.fileno() >= 0:
            self.socket.close()
            self._closed()


def os_error_of(error: Exception) -> OSError:
    """Return the error to report for a socket; log an exception that no socket should raise."""
    if isinstance(error, DiosError):
        return OSError(0, error.message)
    if isinstance(error, OSError):
        return error
    _log.error("an internal error ended a network stream", exc_info=error)
    return OSError(0, "an internal error of the node; see its log")

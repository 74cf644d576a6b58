"""The order of transfers to one other node, and the data connections that carry them.

``dios.host.peers.bulk`` moves the bytes. Principals take turns, as in the queue of large copies.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import trio

from dios import limits
from dios.errors import DiosError, WouldBlockError
from dios.host.bandwidth.accounts import Account
from dios.host.bandwidth.rates import Charge, Rates
from dios.host.loop.fair_queue import FairQueue, TaskPrincipals
from dios.host.peers.bulk import DataSender, Transfer
from dios.ids import TaskId
from dios.wire.types import Traffic

_log: Final = logging.getLogger(__name__)

Open: TypeAlias = Callable[[], Awaitable[socket.socket]]


class TransferQueue:
    """The queue of transfers to one node while its control connection lasts.

    ``open_one`` makes one more data connection; its tasks run in ``nursery``.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        owners: TaskPrincipals,
        rates: Rates,
        open_one: Open,
    ) -> None:
        self._nursery: Final = nursery
        self._owners: Final = owners
        self._rates: Final = rates
        self._open_one: Final = open_one
        self._turns: Final = FairQueue(
            self,
            limits.DATA_CONNECTIONS,
            at_most=limits.DATA_CONNECTIONS_MAX,
            paced=self._is_paced,
            promised=rates.guaranteed,
            promised_most=limits.GUARANTEED_CONNECTIONS_MAX,
        )
        rates.listeners.add(self._turns.start_ready)
        self._free: Final[list[DataSender]] = []
        self._all: Final[set[DataSender]] = set()
        self._task_of: Final[dict[int, TaskId]] = {}
        self._soon: Final = trio.lowlevel.current_trio_token().run_sync_soon
        self._trouble = ""
        self._queued = 0
        self._closed = False
        self._empty = trio.Event()
        self._empty.set()

    @property
    def queued(self) -> int:
        """The number of transfers that have not ended."""
        return self._queued

    def send(self, task: TaskId, transfer: Transfer) -> None:
        """Queue a transfer until it is the turn of ``task``.

        Raise WouldBlockError if too many transfers wait already; ``done`` was called then.
        """
        if self._queued >= limits.DCP_TRANSFERS_QUEUED_MAX:
            transfer.done()
            raise WouldBlockError(f"{self._queued} transfers wait for a node that does not receive them")
        if self._empty.is_set():
            self._empty = trio.Event()
        self._queued += 1
        if transfer.size or self._rates.task_rate(task):
            who, named = self._owners.of(task), self._owners.home_id(task)
            charge = Charge(self._rates, who, Traffic.OUT, transfer.size, named)
            transfer = transfer._replace(charge=charge)
        self._turns.request_turn(task, lambda: self._begin(task, transfer))

    async def wait_empty(self) -> None:
        """Wait until every transfer has ended and every connection is closed."""
        await self._empty.wait()

    def close(self) -> None:
        """End everything, because the node is gone."""
        self._closed = True
        self._rates.listeners.discard(self._turns.start_ready)
        for sender in self._all:
            sender.close()
        self._rates.wake()

    def of(self, task: TaskId) -> Account:
        """Return the account of a task; turns alternate among accounts."""
        return self._rates.turns_account(self._owners.home_id(task), self._owners.of(task))

    def charged(self, task: TaskId) -> Account:
        """Return the account that a task's bytes are charged to."""
        return self._rates.account(self._owners.home_id(task), self._owners.of(task))

    def _is_paced(self, account: Account) -> bool:
        return self._rates.paced(account, Traffic.OUT)

    def _begin(self, task: TaskId, transfer: Transfer) -> None:
        self._task_of[id(transfer)] = task
        if self._closed:
            # Later, because ending a transfer starts the next one's turn, which would recurse here.
            self._soon(self._over, transfer)
        elif self._free:
            self._free.pop().send(transfer)
        else:
            self._nursery.start_soon(self._open_and_send, transfer, name="open a data connection")

    async def _open_and_send(self, transfer: Transfer) -> None:
        try:
            sock = await self._open_one()
        except (DiosError, OSError) as error:
            # The request of this transfer is repeated later, if it is still needed.
            if str(error) != self._trouble:
                self._trouble = str(error)
                _log.warning("cannot open a data connection to a node", extra={"why": self._trouble})
            self._over(transfer)
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends this transfer alone
            _log.error("an internal error ended a transfer", exc_info=error)
            self._over(transfer)
            return
        except BaseException:
            self._over(transfer)
            raise
        sender = DataSender(
            sock,
            sent=self._sent,
            ended=lambda reason: self._ended(sender, reason),
        )
        self._all.add(sender)
        if self._closed:
            sender.close()
        sender.send(transfer)

    def _sent(self, sender: DataSender, transfer: Transfer, whole: bool) -> None:  # noqa: FBT001 - a callback
        if whole and not self._closed:
            if len(self._free) < limits.DATA_CONNECTIONS_MAX:
                self._free.append(sender)
            else:
                sender.close()
        self._over(transfer)

    def _over(self, transfer: Transfer) -> None:
        self._queued -= 1
        if transfer.charge is not None:
            transfer.charge.close()
        transfer.done()
        self._turns.end_turn(self._task_of.pop(id(transfer)))
        self._check_empty()

    def _check_empty(self) -> None:
        if not self._queued and not self._all:
            self._empty.set()

    def _ended(self, sender: DataSender, reason: Exception | None) -> None:
        self._all.discard(sender)
        if sender in self._free:
            self._free.remove(sender)
        self._check_empty()
        if reason is not None and not self._closed:
            _log.warning("a data connection to a node ended", extra={"why": str(reason)})

"""Runs what acts for users in the node's process: supervisors of services, and keepers of replicas.

Each user with services here has a supervisor, and each user with promised replicas a keeper. Both get a
session of the node that acts for the user, so that they have that user's rights and limits and no others: a
coordinator has no part in it. ``dios.lib.supervised`` and ``dios.lib.kept`` have them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import trio
from msgspec.structs import asdict

from dios import limits
from dios.errors import DiosError, unwrap_group
from dios.wire.replies import KeepersReport

if TYPE_CHECKING:
    from dios.client.aio.node import AsyncNode
    from dios.host.process.session_server import SessionServer
    from dios.lib.kept.keeper import Keeper
    from dios.node.settings import Settings

_TABLES: Final = ("services", "kept")
_LABELS: Final = {"services": "supervises services", "kept": "keeps replicas"}

_log: Final = logging.getLogger(__name__)


class KeepersOfUsers:
    """The keepers that run on this node."""

    def __init__(self) -> None:
        self.running: Final[set[Keeper]] = set()

    @property
    def counts(self) -> dict[str, int]:
        """The counts for the description of the node."""
        departures = [left for keeper in self.running if (left := keeper.leaving) is not None]
        report = KeepersReport(
            keepers=len(self.running),
            keepers_leading=len(departures),
            leaving_nodes=min((left.nodes for left in departures), default=0),
            leaving_replicas=sum(left.replicas for left in departures),
            leaving_bytes=sum(left.size for left in departures),
            leaving_unchecked=sum(not left.checked for left in departures),
        )
        return asdict(report)


async def act_for_users(
    server: SessionServer, own_uid: int, stopping: trio.Event, settings: Settings, keepers: KeepersOfUsers
) -> None:
    """Run a supervisor for each user with services on this node, and a keeper for each with promises.

    The running keepers are in ``keepers``.
    """
    # Imported late, because a node without a cluster needs no client in its process.
    from dios.client.aio.node import open_session  # noqa: PLC0415 - see above

    running: set[tuple[str, str]] = set()
    async with trio.open_nursery() as nursery:
        while True:
            try:
                sock = server.open_for(own_uid, nursery)
                if sock is None:
                    return
                async with open_session(sock, label="looks for records of users") as node:
                    while True:
                        for table in _TABLES:
                            for row in await node.read_table(table):
                                who = (table, str(row["principal"]))
                                if who not in running:
                                    running.add(who)
                                    nursery.start_soon(
                                        _act, server, who, running, stopping, settings, keepers
                                    )
                        await trio.sleep(limits.SERVICE_LOOK_MS / 1000)
            except (DiosError, OSError) as error:
                if stopping.is_set():
                    return
                _log.warning("cannot look for records of users", extra={"why": str(error)})
                await trio.sleep(limits.SERVICE_REPAIR_MS / 1000)


async def _act(
    server: SessionServer,
    who: tuple[str, str],
    running: set[tuple[str, str]],
    stopping: trio.Event,
    settings: Settings,
    keepers: KeepersOfUsers,
) -> None:
    from dios.client.aio.node import open_session  # noqa: PLC0415 - as above

    table, principal = who
    kind = "services" if table == "services" else "replicas"
    log = partial(_log.warning, "the %s of %s: %s", kind, principal)
    try:
        async with trio.open_nursery() as nursery:
            sock = server.open_for(int(principal.removeprefix("uid:")), nursery)
            if sock is None:
                log("this user may not connect to this node, so it does not act for them")
                await trio.sleep(limits.SERVICE_REPAIR_MS / 1000)
                return
            async with open_session(sock, label=_LABELS[table]) as node:
                await _run_actor(table, node, log, settings, keepers)
    except* Exception as group:  # noqa: BLE001 - the records of a user must not end the node
        if not stopping.is_set():
            expected = group.split((DiosError, OSError))[1] is None
            _log.warning(
                "a session that acts for a user ended and is started again",
                extra={"user": principal, "table": table, "why": str(unwrap_group(group))},
                exc_info=None if expected else group,
            )
            await trio.sleep(limits.SERVICE_REPAIR_MS / 1000)
    finally:
        running.discard(who)


async def _run_actor(
    table: str,
    node: AsyncNode,
    log: Callable[[str], None],
    settings: Settings,
    keepers: KeepersOfUsers,
) -> None:
    if table == "services":
        from dios.lib.supervised.supervisor import supervise  # noqa: PLC0415 - as above

        await supervise(node, log)
        return
    from dios.lib.kept.keeper import Keeper  # noqa: PLC0415 - as above

    keeper = Keeper(node, log, grace_ms=settings.replica_grace, rate=settings.replica_rate)
    keepers.running.add(keeper)
    try:
        await keeper.run()
    finally:
        keepers.running.discard(keeper)

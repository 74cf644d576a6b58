"""Runs the supervisors of users' services in the node's process, one for each user with services here.

A supervisor gets a session of the node that acts for the user, so that a replica has that user's rights and
no others: a coordinator has no part in it. ``dios.lib.supervised`` has the supervisor.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from dios import limits
from dios.errors import DiosError

if TYPE_CHECKING:
    from dios.host.process.session_server import SessionServer

_TABLE: Final = "services"
_LABEL: Final = "supervises services"

_log: Final = logging.getLogger(__name__)


async def supervise_services(server: SessionServer, own_uid: int, stopping: trio.Event) -> None:
    """Run a supervisor for each user whose services this node has, until the node stops."""
    # Imported late, because a node without a cluster needs no client in its process.
    from dios.client.aio.node import open_session  # noqa: PLC0415 - see above

    running: set[str] = set()
    async with trio.open_nursery() as nursery:
        while True:
            try:
                sock = server.open_for(own_uid, nursery)
                if sock is None:
                    return
                async with open_session(sock, label=_LABEL) as node:
                    while True:
                        for row in await node.read_table(_TABLE):
                            principal = str(row["principal"])
                            if principal not in running:
                                running.add(principal)
                                nursery.start_soon(_supervise, server, principal, running, stopping)
                        await trio.sleep(limits.SERVICE_LOOK_MS / 1000)
            except (DiosError, OSError) as error:
                if stopping.is_set():
                    return
                _log.warning("cannot look for services", extra={"why": str(error)})
                await trio.sleep(limits.SERVICE_REPAIR_MS / 1000)


async def _supervise(server: SessionServer, principal: str, running: set[str], stopping: trio.Event) -> None:
    from dios.client.aio.node import open_session  # noqa: PLC0415 - as above
    from dios.lib.supervised.supervisor import Supervisor  # noqa: PLC0415 - the same

    log = partial(_log.warning, "the services of %s: %s", principal)
    try:
        async with trio.open_nursery() as nursery:
            sock = server.open_for(int(principal.removeprefix("uid:")), nursery)
            if sock is None:
                log("this user may not connect to this node, so it does not lead their services")
                await trio.sleep(limits.SERVICE_REPAIR_MS / 1000)
                return
            async with open_session(sock, label=_LABEL) as node:
                await Supervisor(node, log).run()
    except* Exception as group:  # noqa: BLE001 - the records of a user must not end the node
        if not stopping.is_set():
            expected = group.split((DiosError, OSError))[1] is None
            _log.warning(
                "the supervisor of a user's services ended and is started again",
                extra={"user": principal, "why": str(group.exceptions[0])},
                exc_info=None if expected else group,
            )
            await trio.sleep(limits.SERVICE_REPAIR_MS / 1000)
    finally:
        running.discard(principal)

"""Keeps a key-value store on living nodes: a supervised service that replaces hosts that are gone for good.

``keep_store`` creates the service, and ``main`` is its program. Several may run at once, such as on two
sides of a partition: a majority of the store agrees on each replacement, so that a minority replaces nothing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

from dios.client.sync.node import Group, Node, connect
from dios.errors import DiosError, InvalidError, UnreachableError
from dios.lib.keyvalue import KeyValueStore, open_store
from dios.limits import STORE_KEEPER_LOOK_MS, STORE_REPLACE_AFTER_S
from dios.wire.nametext import fingerprint

if TYPE_CHECKING:
    from dios.client.ops.cluster import Member

_PROGRAM: Final = b"from dios.lib.store_keeper import main\n\nmain()\n"


def keep_store(
    node: Node,
    group: Group,
    store: KeyValueStore,
    *,
    spares: Sequence[str] = (),
    after: float = STORE_REPLACE_AFTER_S,
) -> str:
    """Replace hosts of a store that do not answer for ``after`` seconds, from now on.

    They are replaced by the first of the ``spares`` that can; by default these are the other nodes of the
    present, those in racks without a host first. Return the name of the supervised service that does it;
    remove the service to end that. Raises InvalidError if the store is kept already, or if there is no spare
    node, and the errors of ``Services.create``.
    """
    # Imported here because the service's own program needs none of it.
    from dios.lib.supervised.services import ServiceProgram, Services  # noqa: PLC0415 - see above

    if after <= 0:
        raise InvalidError(f"a host is replaced after more than 0 seconds, not {after:g}")
    spares = spares or spare_nodes(store.hosts, node.nodes())
    if not spares:
        raise InvalidError("no node is left that could replace a host of the store. Add one to the cluster.")
    name = f"store-{fingerprint(store.name)}"
    arguments = (store.name.hex(), f"{after:g}", *spares)
    program = ServiceProgram(_PROGRAM, args=arguments, groups=(group,), label="store keeper")
    Services(node).create(name, program)
    return name


def spare_nodes(hosts: Sequence[str], members: Sequence[Member]) -> list[str]:
    """Return the nodes that can replace a host, those in racks without one first."""
    racks = {member.rack or member.name for member in members if member.name in hosts}
    fit = [member for member in members if member.usable and member.keeps and member.name not in hosts]
    return [
        member.name
        for member in sorted(fit, key=lambda member: ((member.rack or member.name) in racks, member.name))
    ]


class LostHosts:
    """The time for which hosts of a store have been away."""

    def __init__(self, after: float) -> None:
        self._after: Final = after
        self._away: dict[str, float] = {}

    def lost(self, away: Collection[str], now: float) -> list[str]:
        """Return the hosts that have been away for the whole time; ``away`` are those of this moment."""
        self._away = {host: self._away.get(host, now) for host in away}
        return [host for host, since in self._away.items() if now - since >= self._after]


def main() -> None:
    """Run the service: look at the hosts, and replace those that were away for too long."""
    name, after, spares = bytes.fromhex(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    node = connect()
    watch = LostHosts(after)
    store: KeyValueStore | None = None
    while True:
        try:
            store = store or open_store(node, node.groups[0], name)
            for host in watch.lost(store.away(), time.monotonic()):
                _replace(store, host, spares)
        except DiosError as error:
            _say(f"cannot look at the store: {error}")
            store = None
        time.sleep(STORE_KEEPER_LOOK_MS / 1000)


def _replace(store: KeyValueStore, lost: str, spares: Sequence[str]) -> None:
    for new in spares:
        if new in store.hosts:
            continue
        try:
            moved = store.replace(lost, new)
        except UnreachableError as error:
            _say(f"{new} cannot replace {lost}: {error}")
        else:
            _say(f"{new} has replaced {lost}" if moved else f"{lost} was replaced by another keeper")
            return
    _say(f"{lost} is lost, and none of {', '.join(spares)} can replace it")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()

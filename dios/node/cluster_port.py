"""A node's part in its cluster: its identity, its port, and the search for other nodes at the start.

``dios.node.cluster`` creates and joins clusters; ``dios.host.peers`` has the conversation with other nodes.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

import trio

from dios import limits
from dios.core.events import Event, LoadMeasured
from dios.core.remote.peers import Here
from dios.errors import DiosError
from dios.host.handover.format import Port
from dios.host.loop.clock import Clock
from dios.host.peers.connection_protocols import NodeDescription, PeerConnection, PeerNetwork
from dios.host.peers.links import LabelWriter, PeerLinks
from dios.host.peers.mandates import UserKeys
from dios.host.peers.shared_documents import SecretStore
from dios.host.peers.statements import RevocationList
from dios.ids import NodeId, Principal
from dios.node import coordinator_supervisor, devices, discovery, live_labels, machine, seeds
from dios.node.certificate_keeper import Address, CertificateKeeper
from dios.node.settings import PrincipalsMode, Settings
from dios.transport.identity import identity, joining, renewal
from dios.transport.identity.certificates import CertificateRole
from dios.transport.identity.identity import Identity
from dios.transport.identity.principals import PrincipalRegister
from dios.transport.tcp.announce import AnnouncedNode
from dios.transport.tcp.secured import Secured
from dios.transport.tcp.tls import Listener, dial, listen, listen_again
from dios.wire.messages import Device, ThreadPlace
from dios.wire.node_roles import NodeRight

_log: Final = logging.getLogger(__name__)


class Dialer:
    """A dialler with this node's identity; its connections run in ``nursery``."""

    def __init__(self, me: Identity, nursery: trio.Nursery) -> None:
        self._me = me
        self._nursery: Final = nursery

    def adopt(self, me: Identity) -> None:
        """Use this identity from now on, after its certificate was renewed."""
        self._me = me

    async def dial(self, address: str, *, expect: NodeId | None = None) -> PeerConnection:
        """Connect like ``dios.transport.tcp.tls.dial``."""
        return await dial(address, self._me, self._nursery, expect=expect)


def _endless() -> None:
    """Return None: the certificate has no end."""


class ClusterMembership(NamedTuple):
    """The data that make a node a member of a cluster. ``secret`` never leaves the node."""

    me: NodeDescription
    secret: bytes
    forgotten: tuple[NodeId, ...]
    network: PeerNetwork
    guard: RevocationList
    user_keys: UserKeys
    later_secrets: SecretStore
    disk_rate: int = 0
    link_rate: int = 0
    slots: int = limits.TASKS_MAX
    labels: tuple[tuple[str, str], ...] = ()
    coordinator: bool = False
    enforcement: tuple[tuple[str, str], ...] = ()
    cache_bytes: int = 0
    leases: bool = True
    devices: tuple[Device, ...] = ()
    threads: tuple[ThreadPlace, ...] = ()
    limbo_from_nodes: bool = False
    roles: str = ""
    write_labels: LabelWriter = live_labels.write_nothing
    key_digest: bytes = b""
    certificate_days: Callable[[], float | None] = _endless
    cluster: bytes = b""
    all_signed: bool = False

    @property
    def here(self) -> Here:
        """The same data in the form for the core."""
        me = self.me
        processors = tuple(sorted(os.sched_getaffinity(0)))
        return Here(
            me.node,
            me.epoch,
            me.name,
            me.rack,
            me.address,
            self.secret,
            len(processors),
            machine.memory_bytes(),
            self.disk_rate,
            self.link_rate,
            self.slots,
            self.labels,
            self.coordinator,
            processors,
            self.enforcement,
            self.cache_bytes,
            self.leases,
            self.devices,
            self.threads,
            self.limbo_from_nodes,
            self.roles,
            self.cluster,
            self.key_digest,
            self.all_signed,
        )

    @property
    def machine_counts(self) -> dict[str, int]:
        """The numbers of the machine's parts, and of its devices of each kind."""
        kinds = Counter(f"devices_{device.kind}" for device in self.devices)
        return {**machine.MachineInsides(self.threads).counts, **kinds}

    def __repr__(self) -> str:
        return f"Membership({self.me})"


class ClusterPort(NamedTuple):
    """An open port of a node, before connections are served."""

    membership: ClusterMembership
    certificate: CertificateKeeper
    listener: Listener
    denied: Callable[[Principal, str], None]


async def open_port(
    settings: Settings,
    nursery: trio.Nursery,
    denied: Callable[[Principal, str], None],
    taken: Port | None = None,
) -> ClusterPort | None:
    """Open the node's port. Return None for a node without a cluster or one that does not listen.

    ``denied`` is called with the principal of a refused connection and the reason. ``taken`` is the port of a
    predecessor of this process's program: the node goes on with it, and with the same start. Raise DiosError
    or OSError if the port cannot be opened.
    """
    own = identity.load(settings.data)
    if own is None or not settings.listen:
        if own is not None:
            _log.warning("the node belongs to a cluster but does not listen; it runs alone")
        return None

    def refused(peer_address: str, why: str) -> None:
        denied(Principal(f"address:{peer_address}"), why)

    if taken is None:
        listener = await listen(settings.listen, own, nursery, refused=refused)
        epoch = identity.next_epoch(settings.data)
    else:
        listener = listen_again(taken.sockets, own, nursery, refused=refused)
        epoch = taken.epoch
    address = settings.advertise or listener.address
    rack, labels = live_labels.effective(settings)
    me = NodeDescription(own.node, epoch, own.name, rack, address)
    forgotten = tuple(sorted(own.revoked))
    own_devices = devices.find_devices(settings.devices)
    for problem in own_devices.problems:
        _log.warning("a device is missing", extra={"why": problem})
    network = Dialer(own, nursery)
    certificate = CertificateKeeper(own)
    certificate.watch(listener.adopt)
    certificate.watch(network.adopt)
    membership = ClusterMembership(
        me,
        own.secret,
        forgotten,
        network,
        own.trust,
        UserKeys(PrincipalRegister(own.folder, own.cluster, settings.administrator), own.key),
        own.generations,
        settings.store_rate,
        settings.link_rate,
        settings.tasks_max,
        labels,
        coordinator_supervisor.wanted(settings, own.card.why_not(NodeRight.SCHEDULE)),
        cache_bytes=settings.remote_cache_bytes,
        leases=settings.leases,
        devices=own_devices.devices,
        threads=machine.insides().threads,
        limbo_from_nodes=settings.limbo_from_nodes,
        roles=str(own.card.node_role),
        write_labels=partial(live_labels.write, settings.data),
        key_digest=own.card.key,
        certificate_days=certificate.days_left,
        cluster=own.cluster,
        all_signed=settings.principals is PrincipalsMode.SIGNED,
    )
    return ClusterPort(membership, certificate, listener, denied)


async def serve_port(port: ClusterPort, links: PeerLinks, settings: Settings, nursery: trio.Nursery) -> None:
    """Serve other nodes, and look for those known from the last time, until cancelled."""
    for address in seeds.read(settings.data):
        if address != port.membership.me.address:
            nursery.start_soon(links.seek, address, name="look for the cluster")
    if settings.announce:
        me = port.membership.me
        own = port.certificate.own
        voice = AnnouncedNode(own.cluster, own.key(), me.node, me.address)
        place = discovery.place_of(settings.listen)
        nursery.start_soon(discovery.find_others, voice, own.trust.is_member, links, place, name="announce")
    nursery.start_soon(port.certificate.keep, lambda: _known(settings, links), name="renew the certificate")
    certifying: set[NodeId] = set()
    _log.info("the node listens for other nodes", extra={"address": port.listener.address})
    try:
        while True:
            secured = await port.listener.accept()
            if secured.peer.role is CertificateRole.JOIN:
                nursery.start_soon(
                    admit,
                    port.certificate.own,
                    secured,
                    links,
                    port.denied,
                    settings.certificate_days,
                    name="admit a node",
                )
            elif secured.peer.renews:
                nursery.start_soon(
                    certify,
                    port.certificate.own,
                    secured,
                    port.denied,
                    settings.certificate_days,
                    certifying,
                    name="renew a certificate",
                )
            else:
                nursery.start_soon(links.welcome, secured, name="serve a node")
    except trio.EndOfChannel:
        return
    finally:
        port.listener.close()


def _known(settings: Settings, links: PeerLinks) -> list[Address]:
    """Return the addresses of the known nodes, and those of the last start, whose nodes are not known yet."""
    known = [Address(peer.node, peer.address) for peer in links.hand_over()]
    met = {peer.address for peer in known}
    with contextlib.suppress(OSError):  # other nodes are known without the file
        known += [Address(0, address) for address in seeds.read(settings.data) if address not in met]
    return known


async def certify(
    me: Identity,
    secured: Secured,
    denied: Callable[[Principal, str], None],
    days: int,
    served: set[NodeId],
) -> None:
    """Answer a node that wants its next certificate; ``denied`` records a refusal.

    ``served`` has the nodes that are being answered. A further connection of one of them is closed, so that
    their number is bounded by that of the nodes.
    """
    name, node = secured.peer.name, secured.peer.node
    if node in served:
        secured.close()
        return
    served.add(node)
    try:
        await renewal.serve(me, secured, days=days)
    except (DiosError, OSError) as error:
        _log.warning("a certificate was not renewed", extra={"peer": name, "why": str(error)})
        denied(Principal(f"node:{name}"), str(error))
    except Exception as error:  # noqa: BLE001 - it ends this connection alone
        _log.exception("an internal error ended the renewal of a certificate", exc_info=error)
        denied(Principal(f"node:{name}"), "an internal error")
    else:
        _log.info("a certificate was renewed", extra={"peer": name})
    finally:
        served.discard(node)


async def admit(
    me: Identity,
    secured: Secured,
    links: PeerLinks,
    denied: Callable[[Principal, str], None],
    days: int,
) -> None:
    """Answer a machine that wants to join, with a certificate for ``days``; ``denied`` records a refusal."""
    try:
        known = await joining.admit(me, secured, taken=links.knows_name, days=days)
    except (DiosError, OSError) as error:
        _log.warning("a node was not admitted", extra={"why": str(error)})
        denied(Principal("join"), str(error))
    except Exception as error:  # noqa: BLE001 - it ends this connection alone
        _log.exception("an internal error ended the admission of a node", exc_info=error)
        denied(Principal("join"), "an internal error")
    else:
        _log.info("a node was admitted", extra={"peer": known.name})


async def measure_load(clock: Clock, feed: Callable[[Event], None]) -> None:
    """Report the free memory to the core from time to time, until cancelled."""
    while True:
        feed(LoadMeasured(clock.now(), machine.free_memory_bytes()))
        await trio.sleep(limits.LOAD_PERIOD_MS / 1000)


async def keep_seeds(settings: Settings, links: PeerLinks) -> None:
    """Save the other nodes' addresses for the next start whenever a node connects, until cancelled.

    Some time passes until this node has heard of all others. Meanwhile the addresses of the last start stay.
    """
    former = seeds.read(settings.data)
    end = trio.current_time() + limits.SEEDS_KEPT_MS / 1000
    while True:
        await links.wait_connected()
        addresses = links.addresses
        if trio.current_time() < end:
            addresses = (*addresses, *former)
        try:
            await trio.to_thread.run_sync(seeds.write, settings.data, addresses)
        except OSError as error:
            _log.warning("cannot save the addresses of the other nodes", extra={"why": str(error)})

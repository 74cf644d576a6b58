"""The base class of network functions (thesis section 3.2.4): a class with two handlers.

It is compiled by ``compile/compile_handlers.py`` and run by ``runtime/workers.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

import numpy as np
import numpy.typing as npt

from dios.errors import InvalidError
from dios.limits import SPRAYER_QUIC_PORTS_MAX

if TYPE_CHECKING:
    from dios.sprayer.flows.flow_table import Flows
    from dios.sprayer.packets.packet import Batch, Flow, Kept


class HandlerError(InvalidError):
    """A handler is not Python code that can be compiled; the message names its file and line."""


class AlertReport(TypedDict):
    """A pattern that was found in a flow; ``end`` is the number of bytes up to its end."""

    pattern: str
    source: str
    source_port: int
    target: str
    target_port: int
    protocol: int
    end: int
    dropped: bool


class NetworkFunction:
    """The base class of network functions: two handlers; a stateless function needs only the second.

    Numba compiles the handlers and the methods that they call on ``self``. They can read attributes of
    ``self`` that are numbers or numpy arrays and whose names do not begin with an underscore. They can change
    elements of arrays, but not numbers. Handlers run on all cores at the same time, so an array that they
    write needs a row for each core (``flows.core``). They must not create arrays, lists or dicts, which would
    take too long for each packet.

    TCP packets with SYN, FIN or RST, all UDP packets and all ICMP packets except errors go to
    ``connection_packets`` on the designated core of their flow; only that core may write the entry of the
    flow. All other packets go to ``regular_packets`` on the core where they arrive, which can ``hand_over``
    one to ``connection_packets``.
    """

    entry: tuple[tuple[str, str], ...] = ()
    """The fields stored for each flow: names and numpy types, such as ``("port", "u2")``."""
    flows_max = 65_536
    """The maximum number of flows of each core."""
    idle_s = 300
    """The number of seconds without a packet after which a flow expires."""
    stateless = False
    """True if the function has no flows: all packets are regular and stay on the core where they arrive."""
    writes_each_packet = False
    """True if every packet may change the entry of its flow (thesis section 3.5).

    Then all packets except ICMP errors go to ``connection_packets``, and spraying one flow gains nothing.
    """
    by_inside_end = False
    """True if the end of a flow that is inside chooses the designated core.

    Keys of flows then have that end as their source (``inside_first(packet)``), and all flows of one source
    have the same core. UDP and ICMP echoes are regular; ``regular_packets`` must call ``hand_over`` for a
    packet that may open a flow.
    """
    state_in_flows = False
    """True if another host can continue with the entries of flows alone, so hosts can share the function."""
    takes_fragments = False
    """True if ``regular_packets`` gets fragments, too, with the cause ``FRAGMENT`` and without ports.

    ``fragments.admit_fragment`` fills in what they lack, and ``wait`` is for those whose first part has not
    come; a function with flows sets their ``hash`` where it calls ``hand_over``.
    """
    takes_protocols = False
    """True if ``regular_packets`` gets packets of other protocols than TCP, UDP and ICMP echoes, too.

    They have the cause ``PROTOCOL``, which it must change, no ports and no ``hash``. ICMP errors about such
    packets are among them.
    """
    quic_ports: Sequence[int] = ()
    """The UDP ports of QUIC servers whose packets with short headers are regular, and sprayed like TCP.

    ``regular_packets`` must then call ``hand_over`` for a packet with ``packet.quic`` whose flow is unknown.
    """
    grows = 0
    """The number of bytes by which a packet may grow; engines reserve this space if needed."""

    def prepare(self, cores: int) -> None:
        """Create arrays, and set ``entry``, ``flows_max`` and ``idle_s``; called before anything else."""

    def manage(self) -> None:
        """Do periodic work in Python, such as asking other services and changing arrays.

        It is called before the first packet and then about four times per second, in a thread, one call at a
        time. Handlers run at the same time and must never see half of a change. An exception is logged and
        stops nothing.
        """

    def connection_packets(self, batch: Batch, flows: Flows) -> None:
        """Handle packets that may open or close a connection, on the designated core of their flow."""
        self.regular_packets(batch, flows)

    def regular_packets(self, batch: Batch, flows: Flows) -> None:
        """Handle all other packets, on the core where they arrive."""
        raise NotImplementedError

    def expired_flow(self, flow: Flow, entry: Kept, flows: Flows) -> bool:  # noqa: ARG002 - for subclasses
        """Handle a flow of this core that has expired; return True to keep it, and be asked again.

        ``entry`` is valid until the first call of ``flows``.
        """
        return False

    def counters(self, cores: int, *names: str) -> npt.NDArray[np.int64]:
        """Return counters of zeros for ``prepare``: use ``self.counts[flows.core, 0] += 1`` in handlers.

        The shape is (cores, at least the number of names). Each core has its own cache lines; ``totals``
        adds them up.
        """
        counts = np.zeros((cores, -(-len(names) // 16) * 16), np.int64)
        known = self.__dict__.setdefault("_counters", [])
        known.append((names, counts))
        return counts

    def continue_flows(self, tables: Sequence[Flows]) -> None:
        """Repair flows that another host wrote before it ended, which may be in the middle of a change.

        It is called with the tables of all cores, before the first packet. Not compiled.
        """

    def own_networks(self) -> Sequence[str]:
        """Return the addresses and networks that no machine has, so neighbours are answered here."""
        return ()

    def recent_alerts(self) -> list[AlertReport]:
        """Return what the function found lately; it may be called while workers run."""
        return []

    def totals(self) -> dict[str, int]:
        """Return the current sums of the ``counters`` over all cores."""
        return {
            name: int(counts[:, place].sum())
            for names, counts in self.__dict__.get("_counters", [])
            for place, name in enumerate(names)
        }


def checked_quic_ports(ports: Sequence[int]) -> tuple[int, ...]:
    """Return the ports of QUIC servers; raise ``ValueError`` for too many, or for one that is no port."""
    if len(ports) > SPRAYER_QUIC_PORTS_MAX or not all(0 < port < 2**16 for port in ports):
        raise ValueError(
            f"QUIC ports {', '.join(map(str, ports))}: give at most {SPRAYER_QUIC_PORTS_MAX}, from 1 to 65535"
        )
    return tuple(ports)

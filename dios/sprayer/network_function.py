"""What a network function is written as (thesis section 3.2.4): a class with two handlers.

Not for: compiling it (``compile_handlers.py``) or running it (``workers.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dios.errors import InvalidError

if TYPE_CHECKING:
    from dios.sprayer.flows.flow_table import Flows
    from dios.sprayer.packets.packet import Batch, Flow, Kept


class HandlerError(InvalidError):
    """A handler is no Python that can be compiled; the message names file and line."""


class NetworkFunction:
    """The base of network functions: two handlers, of which one that keeps nothing needs the second only.

    Handlers and what they call on ``self`` are compiled by Numba: of ``self`` they see attributes whose
    names do not begin with an underscore and that are numbers or numpy arrays. Numbers cannot be changed
    there, elements of arrays can. Handlers run on all cores at the same time, so an array that they write
    wants a row for each core (``flows.core``), and they make no arrays, lists or dicts: there is no time
    for that with each packet.

    Packets of TCP with SYN, FIN or RST, and all of UDP and of ICMP but errors, meet ``connection_packets``
    on the designated core of their flow, which alone may write what is kept of it. All others meet
    ``regular_packets`` wherever they arrive.
    """

    entry: tuple[tuple[str, str], ...] = ()
    """What is kept of each flow: names and types as numpy's, as ``("port", "u2")``."""
    flows_max = 65_536
    """So many flows are kept by each core."""
    idle_s = 300
    """A flow is over after so many seconds without a packet."""
    stateless = False
    """True: there are no flows, all packets are regular and stay on the core on which they arrive."""
    grows = 0
    """So many bytes a packet may become longer: engines that hold no more than was received make room."""

    def prepare(self, cores: int) -> None:
        """Make arrays, and set ``entry``, ``flows_max`` and ``idle_s``: it comes before anything else."""

    def manage(self) -> None:
        """What is to be done now and then beside packets, in Python: ask others, change arrays.

        Whoever runs the function calls it before the first packet and then about four times a second, in a
        thread, one call at a time; handlers run meanwhile, and must never see half of a change. What it
        raises is logged and stops nothing.
        """

    def connection_packets(self, batch: Batch, flows: Flows) -> None:
        """Packets that may open or close a connection, on their designated core."""
        self.regular_packets(batch, flows)

    def regular_packets(self, batch: Batch, flows: Flows) -> None:
        """All other packets, wherever they arrived."""
        raise NotImplementedError

    def expired_flow(self, flow: Flow, entry: Kept, flows: Flows) -> bool:  # noqa: ARG002 - for subclasses
        """A flow of this core was not seen for so long, and is forgotten unless this says True.

        ``entry`` is good until the first call of ``flows``.
        """
        return False

    def counters(self, cores: int, *names: str) -> npt.NDArray[np.int64]:
        """For ``prepare``: (cores, at least so many) zeros, for ``self.counts[flows.core, 0] += 1``.

        Rows of cores are on cache lines of their own; ``totals`` adds them up.
        """
        counts = np.zeros((cores, -(-len(names) // 16) * 16), np.int64)
        known = self.__dict__.setdefault("_counters", [])
        known.append((names, counts))
        return counts

    def totals(self) -> dict[str, int]:
        """What ``counters`` counted, over all cores, at this moment."""
        return {
            name: int(counts[:, place].sum())
            for names, counts in self.__dict__.get("_counters", [])
            for place, name in enumerate(names)
        }

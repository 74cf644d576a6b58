"""The states of a session of TCP in a NAT or NAT64 (RFC 6146, section 3.5.2), and their lifetimes; compiled.

Two transitions differ. A reset also ends a connection that is closed at one end, and its session then has
the short lifetime. A SYN after the end of a connection begins a new one, which lets clients use a port
again. Nothing probes the ends of an idle connection, and no SYN from outside is stored.
"""

from __future__ import annotations

from typing import Final

from dios.kernels import no_refcount_kernel
from dios.sprayer.compile.intrinsics import int64

NO_STATE, OUTSIDE_INIT, INSIDE_INIT, ESTABLISHED, OUTSIDE_FIN, INSIDE_FIN, BOTH_FIN, TRANS = range(8)
TCP_OPEN_S: Final = 7440
TCP_SHORT_S: Final = 240
"""The seconds for which a session without packets stays: while it is open, and in all other states."""


@no_refcount_kernel
def lifetime_of(state: int) -> int:
    """Return the seconds for which a session in a state stays without packets."""
    return int64(TCP_OPEN_S if state in (ESTABLISHED, OUTSIDE_FIN, INSIDE_FIN) else TCP_SHORT_S)


@no_refcount_kernel
def next_state(
    state: int,
    inside: bool,  # noqa: FBT001 - compiled
    opens: int,
    syn: int,
    fin: int,
    rst: int,
    hairpin: bool,  # noqa: FBT001 - compiled
) -> int:
    """Return the state after a packet, which came from inside or not, with these flags (0 or 1).

    ``opens`` is 1 for a SYN without ACK. A reset may be forged, so in ``TRANS`` any other packet restores
    the connection. ``hairpin`` is True if the other end is inside, too: then this session sees one direction,
    and its other direction has a session of its own.
    """
    if state == TRANS:
        if rst:
            return int64(TRANS)
        return int64(INSIDE_INIT if inside and opens else ESTABLISHED)
    if rst:
        return int64(TRANS if state in (ESTABLISHED, OUTSIDE_FIN, INSIDE_FIN) else state)
    if fin and hairpin:
        return int64(BOTH_FIN)
    if fin and state == ESTABLISHED:
        return int64(INSIDE_FIN if inside else OUTSIDE_FIN)
    if fin and state == (OUTSIDE_FIN if inside else INSIDE_FIN):
        return int64(BOTH_FIN)
    if opens and state == BOTH_FIN:
        return int64(INSIDE_INIT if inside else OUTSIDE_INIT)
    if syn and state == (OUTSIDE_INIT if inside else INSIDE_INIT):
        return int64(ESTABLISHED)
    if hairpin and state == INSIDE_INIT and not syn:
        return int64(ESTABLISHED)
    return int64(state)

"""The pause of a call that a node refused because too many calls wait, before it is made again."""

from __future__ import annotations

from typing import Final

_FIRST_S: Final = 0.01
_LONGEST_S: Final = 1.0
_EACH_S: Final = 0.01


def pause_s(refused: int, held: int, *, others: bool) -> float:
    """Return the seconds after which a held call is made again if none of its client is answered before.

    A call waits for an answer to another one. But the node may have refused it because of the calls of other
    clients, whose answers this client does not see. The pause grows with the number of earlier refusals,
    unless ``others`` of this client wait at the node: then it has its full length. With ``held`` calls in the
    client, about a hundred of them are made again in a second.
    """
    grown = _LONGEST_S if others else min(_FIRST_S * 2 ** min(refused, 10), _LONGEST_S)
    return grown + _EACH_S * held

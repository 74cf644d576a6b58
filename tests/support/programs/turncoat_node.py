"""A real node whose messages to others are bent on their way out: its state is true, its words are not.

Run as a program: ``SEED SHARE`` and then the arguments of the daemon. Not for: messages made from nothing
(``tests.support.security.hostile_member.lies``).
"""

from __future__ import annotations

import sys
from collections import deque
from random import Random
from typing import Final, cast

import msgspec

from dios import limits
from dios.host.peers import link
from dios.ids import NodeId
from dios.node import daemon
from dios.wire import dcp, gossip
from dios.wire.codec import DCP_VERSION
from dios.wire.dcp_frames import Control, encode_frame
from tests.fuzz.dcp import Pools
from tests.support.security.hostile_member.lies import GOSSIP, Lies, Tree, framed, name_of, tree_of

KEPT: Final = 50
OWN_USER: Final = "uid:0"


class Turncoat:
    """Bends a share of the frames of a node; the other ones are true, so that its peers go on with it."""

    def __init__(self, seed: int, share: float) -> None:
        self._rng: Final = Random(seed)  # noqa: S311 - repeatable, nothing secret
        self._share: Final = share
        self._lies: Final = Lies(self._rng, Pools(), gossip.MemberRow(NodeId(1), "turncoat"), OWN_USER)
        self._sent: Final[deque[bytes]] = deque(maxlen=KEPT)

    def frame(
        self, message: dcp.Message | Control, beside: bytes | None = None, version: int = DCP_VERSION
    ) -> bytes:
        """Return the frame of a message, a false one, an old one before it, or both."""
        true = encode_frame(message, beside, version)
        rng = self._rng
        if isinstance(message, Control | dcp.PeerHello) or rng.random() > self._share:
            self._sent.append(true)
            return true
        dice = rng.random()
        if dice < 0.1 and self._sent:
            return true + rng.choice(self._sent)
        if dice < 0.15:
            return true + true
        if dice < 0.5 and beside is None:
            return self._lies.bent(message).frame
        false = self._wrong(message)
        return true if false is None or len(false) > limits.DCP_FRAME_BYTES_MAX else false

    def _wrong(self, message: dcp.Message) -> bytes | None:
        tree = cast("Tree", tree_of(message))
        if isinstance(message, dcp.Gossip):
            inside = cast("Tree", msgspec.msgpack.decode(message.message))
            _, changed = self._lies.wrong(inside, "gossip")
            return (
                None
                if self._lies.conceded_gossip(changed)
                else framed([GOSSIP, msgspec.msgpack.encode(changed)])
            )
        _, changed = self._lies.wrong(tree, name_of(tree))
        return None if self._lies.conceded(changed) else framed(changed)


def main() -> int:
    """Run the daemon with other words."""
    seed, share, *arguments = sys.argv[1:]
    link.encode_frame = Turncoat(int(seed), float(share)).frame  # type: ignore[attr-defined] # what it calls
    return daemon.main(arguments)


if __name__ == "__main__":
    sys.exit(main())

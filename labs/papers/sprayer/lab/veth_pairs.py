"""Two machines in namespaces and a network function between them, connected by veth pairs.

``traffic`` and ``tcp`` send through them. Offloads are off at all ends, because a veth pair would otherwise
carry frames that no real cable does: without checksums, and longer than its MTU.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from dios.sprayer.linux.af_packet import AfPacketEngine, open_engine, processors
from dios.sprayer.linux.af_xdp import AfXdpEngine
from dios.sprayer.linux.offloads import change_features, requested_features
from labs.papers.sprayer.lab.namespaces import MachineNamespaces

LEFT: Final = "10.214.0.1"
RIGHT: Final = "10.214.0.2"
CABLE: Final = "e0"
INSIDE: Final = "in0"
OUTSIDE: Final = "out0"
_OFF: Final = ("tx-checksum", "tx-generic-segmentation", "tx-sctp", "tx-tcp", "tx-udp")
RIGHT_LINK: Final = bytes.fromhex("02d105020002")
STRANGER_LINK: Final = bytes.fromhex("02d10502ffff")
"""An address of no machine: a receiver ignores the frame, so that it costs the sender's processor little."""
LEFT_LINK: Final = bytes.fromhex("02d105020001")


class VethPairs:
    """``left`` and ``right`` with addresses, and ``middle`` with ``in0`` and ``out0``; a context manager.

    Raises NotHereError, with the system's reason, if this machine cannot create namespaces.
    """

    def __init__(self) -> None:
        self._stack: Final = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            self._folder: Final = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dios-nf-")))
            self.left, self.right, self.middle = (
                stack.enter_context(contextlib.closing(MachineNamespaces(name)))
                for name in ("left", "right", "middle")
            )
            for space, ours, number in ((self.left, INSIDE, 1), (self.right, OUTSIDE, 2)):
                self._add_pair(space, ours, number)
            self._stack.push(stack.pop_all())

    def _add_pair(self, space: MachineNamespaces, ours: str, number: int) -> None:
        add = f"link add {ours} address 02:d1:05:01:00:{number:02x} type veth"
        peer = f"peer name {CABLE} address 02:d1:05:02:00:{number:02x} netns {space.pid}"
        # Without link-local addresses, for which the kernel sends frames of its own that would be counted.
        quiet = [f"link set {name} addrgenmode none" for name in (ours, CABLE)]
        self.middle.batch([f"{add} {peer}", quiet[0], f"link set {ours} up"])
        address = f"address add 10.214.0.{number}/24 dev {CABLE}"
        space.batch([quiet[1], address, f"link set {CABLE} up"])
        with space.entered():
            offs = [name for name in requested_features(CABLE) if name.startswith(_OFF)]
            change_features(CABLE, dict.fromkeys(offs, False))

    @contextlib.contextmanager
    def engine(
        self,
        cores: int,
        steer: str,
        *,
        secret: int | None = None,
        how: str = "af_packet",
        quic_ports: Sequence[int] = (),
    ) -> Iterator[AfPacketEngine | AfXdpEngine]:
        """Open sockets in the middle for ``cores`` workers, each with a processor if there are enough."""
        with contextlib.ExitStack() as stack:
            with self.middle.entered():
                pairs, pin = [(INSIDE, OUTSIDE)], processors(cores)
                opening = open_engine(
                    pairs,
                    cores,
                    how=how,
                    steer=steer,
                    pin=pin,
                    secret=secret,
                    quic_ports=quic_ports,
                    records=self._folder,
                )
                engine = stack.enter_context(opening)
            try:
                yield engine
            finally:
                with self.middle.entered():
                    stack.close()

    def arrived(self) -> int:
        """Return the number of frames that arrived on the right so far."""
        for line in Path(f"/proc/{self.right.pid}/net/dev").read_text().splitlines():
            name, _, counts = line.partition(":")
            if name.strip() == CABLE:
                return int(counts.split()[1])
        raise AssertionError(f"the right has no {CABLE}")

    def close(self) -> None:
        """Release the namespaces."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

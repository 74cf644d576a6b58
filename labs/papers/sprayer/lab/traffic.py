"""Sending and receiving frames in threads that run without Python, to measure a network function.

The loops are in ``traffic_kernels``; ``measure`` derives rates and delays from them.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from dios.sprayer.linux.packet_socket import PacketSocket, interface
from labs.papers.sprayer.lab import traffic_kernels as kernels
from labs.papers.sprayer.lab.frames import Bytes, Frames
from labs.papers.sprayer.lab.namespaces import MachineNamespaces, NotHereError
from labs.papers.sprayer.lab.veth_pairs import CABLE, LEFT_LINK, STRANGER_LINK, VethPairs

_SOL_PACKET: Final = 263
_VIRTUAL_HEADER: Final = 15
SENDER: Final = "sender"
SINK: Final = "sink"
"""The names of the threads."""
SPREAD: Final = 8
BATCH: Final = 64
WINDOW: Final = 1024
"""Frames in transit to one core: enough to keep it busy, and half of the capacity of its ring."""
LATE_MAX: Final = 256
SINK_PLACES: Final = 4096
PAUSE_NS: Final = 20_000
PAUSE_SINK_NS: Final = 2_000_000
"""The sink's ring holds many frames and the kernel records arrival times: no need to poll more often."""
PAUSE_LONG_NS: Final = 100_000
"""The pause if rings are to be kept full: a sender that polls more often takes time from the workers."""
WAIT_S: Final = 2.0

Words = npt.NDArray[np.int64]
_Loop = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


def frames_to_right(flows: int, length: int, seed: int, *, burst: int = 1) -> Frames:
    """Return frames from the left that arrive on the right and are addressed to no machine there."""
    return Frames(flows, length, seed, target=STRANGER_LINK, source=LEFT_LINK, burst=burst)


class _Thread:
    """A loop in a thread; setting its first word ends it."""

    def __init__(self, name: str, address: int, words: Words) -> None:
        self._words: Final = words
        self._thread: Final = threading.Thread(
            target=_Loop(address), args=(words.ctypes.data, 0, 0), name=name
        )

    def start(self) -> None:
        self._words[kernels.STOP] = 0
        self._thread.start()

    def stop(self) -> None:
        self._words[kernels.STOP] = 1
        self._thread.join()


def _times() -> tuple[Words, Words]:
    """Return the pause that the kernel reads, and memory for the time that it writes."""
    return np.array([0, PAUSE_NS], np.int64), np.zeros(2, np.int64)


class FrameSender:
    """A sender of frames from the left; a context manager that is open from the beginning.

    Nothing is sent before ``open_flows`` and ``running``.
    """

    def __init__(self, space: MachineNamespaces, frames: Frames) -> None:
        self.frames: Final = frames
        with space.entered():
            try:
                self._socket: Final = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            except OSError as error:
                raise NotHereError(f"cannot open a raw socket: {error.strerror}; run this as root") from None
            self._socket.bind((CABLE, 0))
        self._socket.setsockopt(_SOL_PACKET, _VIRTUAL_HEADER, struct.pack("=i", 1))
        self.stamps: Final = np.zeros(len(frames.messages), np.int64)
        self._pause, self._clock = _times()
        self._words: Final = np.zeros(kernels.SENDER_WORDS, np.int64)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def give(self, message: Bytes) -> None:
        """Send one message, (bytes,) uint8."""
        self._socket.send(message.data)

    def open_flows(self) -> None:
        """Send a SYN of each flow."""
        for message in self.frames.opening:
            self.give(message)

    def cores_of(self, counters: Words) -> list[int]:
        """Return the core on which each flow arrives, by sending a message of each; -1 for several cores.

        ``counters`` (cores,) are the frames that each core received. No other frames may arrive meanwhile.
        """
        queue_cores = []
        flows, burst = self.frames.flows, self.frames.burst
        tries = 1 if burst > 1 else SPREAD
        for flow in range(flows):
            before = counters.copy()
            for message in self.frames.messages[flow::flows][:tries]:
                self.give(message)
            late = time.monotonic() + WAIT_S
            while (counters - before).sum() < burst:
                if time.monotonic() > late:
                    raise NotHereError("a frame of the sender did not arrive at any core")
            cores = np.flatnonzero(counters - before)
            queue_cores.append(int(cores[0]) if len(cores) == 1 else -1)
        return queue_cores

    def _queues(self, cores: Sequence[int], counters: Words | None) -> tuple[Words, list[Words]]:
        """Return the sender's queues, one for each core with flows, and the arrays to which they point."""
        frames = self.frames
        alone = counters is not None and cores and min(cores) >= 0
        groups = sorted(set(cores)) if alone else [0]
        queues, kept = np.zeros((len(groups), kernels.QUEUE_WORDS), np.int64), []
        flow = np.arange(len(frames.messages)) % frames.flows
        for queue, core in zip(queues, groups, strict=True):
            order = np.flatnonzero(np.asarray(cores)[flow] == core) if alone else np.arange(len(flow))
            vectors = np.zeros((len(order), 2), np.int64)
            vectors[:, 0] = frames.messages.ctypes.data + order * frames.messages.shape[1]
            vectors[:, 1] = frames.messages.shape[1]
            messages = np.zeros((len(order), kernels.MESSAGE_BYTES // 8), np.int64)
            messages[:, 2] = vectors.ctypes.data + 16 * np.arange(len(order))
            messages[:, 3] = 1
            queue[kernels.MESSAGES], queue[kernels.SIZE] = messages.ctypes.data, len(order)
            queue[kernels.BURST] = frames.burst
            if counters is not None:
                mine = counters[core : core + 1] if alone else counters
                queue[kernels.COUNTER], queue[kernels.COUNTERS] = mine.ctypes.data, len(mine)
                queue[kernels.STRIDE], queue[kernels.BASE] = counters.strides[0], int(mine.sum())
            kept += [vectors, messages]
        return queues, kept

    @contextlib.contextmanager
    def running(
        self,
        *,
        rate: int = 0,
        cores: Sequence[int] = (),
        counters: Words | None = None,
        batch: int = BATCH,
        stamped: bool = False,
    ) -> Iterator[Callable[[], int]]:
        """Send while the context is active; yield a function that returns the number of frames sent.

        With ``rate`` the sender sends that many frames per second. With ``counters`` it sends at the rate of
        processing: each core is kept busy by its flows (``cores``, from ``cores_of``), and no more frames
        are in transit than rings hold.
        """
        queues, kept = self._queues(cores, counters)
        words = self._words
        words[:] = 0
        self._pause[1] = PAUSE_NS if rate else PAUSE_LONG_NS
        words[kernels.SOCKET] = self._socket.fileno()
        words[kernels.PAUSE], words[kernels.CLOCK] = self._pause.ctypes.data, self._clock.ctypes.data
        words[kernels.QUEUES], words[kernels.QUEUES_AT] = len(queues), queues.ctypes.data
        words[kernels.BATCH], words[kernels.RATE], words[kernels.WINDOW] = batch, rate, WINDOW
        words[kernels.LATE_MAX] = LATE_MAX
        words[kernels.STAMPS] = self.stamps.ctypes.data if stamped else 0
        thread = _Thread(SENDER, kernels.functions()[0], words)
        thread.start()
        try:
            yield lambda: int(queues[:, kernels.SENT].sum())
        finally:
            thread.stop()
            kept.clear()


class FrameSink:
    """A receiver of frames on the right with their arrival times; a context manager, active at once."""

    def __init__(self, veth_pairs: VethPairs, sender: FrameSender, *, delays: int = 0) -> None:
        frames = sender.frames
        with veth_pairs.right.entered():
            self._socket: Final = PacketSocket(interface(CABLE), SINK_PLACES)
        ring = self._socket.ring()
        self._last: Final = np.zeros(frames.flows, np.int64)
        self._delays: Final = np.zeros(max(delays, 1), np.int64)
        self._pause, self._clock = _times()
        self._words: Final = np.zeros(kernels.SINK_WORDS, np.int64)
        words = self._words
        self._pause[1] = PAUSE_SINK_NS
        words[kernels.PAUSE] = self._pause.ctypes.data
        words[kernels.RING], words[kernels.PLACES] = ring.ctypes.data, len(ring)
        words[kernels.PLACE_BYTES] = ring.shape[1]
        words[kernels.FLOWS], words[kernels.PER_FLOW] = frames.flows, frames.per_flow
        words[kernels.PAYLOAD], words[kernels.LAST] = frames.payload, self._last.ctypes.data
        words[kernels.SENT_AT] = sender.stamps.ctypes.data if delays else 0
        words[kernels.DELAYS], words[kernels.DELAYS_SIZE] = self._delays.ctypes.data, delays
        del ring
        self._thread: Final = _Thread(SINK, kernels.functions()[1], words)
        self._socket.open_up()
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.stop()
        self._socket.close()

    def clear(self) -> None:
        """Reset the counters."""
        for word in (kernels.ARRIVED, kernels.LATE, kernels.LATE_3, kernels.DELAYS_COUNT):
            self._words[word] = 0

    def wait_arrived(self, count: int, limit_s: float) -> None:
        """Wait until ``count`` frames arrived; NotHereError if they do not within ``limit_s``."""
        late = time.monotonic() + limit_s
        while self.arrived < count:
            if time.monotonic() > late:
                raise NotHereError(f"{self.arrived} of {count} frames arrived within {limit_s:g} s")
            time.sleep(PAUSE_NS / 1e9)

    @property
    def arrived(self) -> int:
        """The number of frames that arrived."""
        return int(self._words[kernels.ARRIVED])

    @property
    def late(self) -> int:
        """The number of frames that arrived after a later one of their flow."""
        return int(self._words[kernels.LATE])

    @property
    def late_by_three(self) -> int:
        """The number of frames that arrived after three or more later ones, which makes a TCP resend."""
        return int(self._words[kernels.LATE_3])

    def delays_us(self) -> npt.NDArray[np.float64]:
        """Return the time from sending to arrival of each frame, in microseconds."""
        return self._delays[: self._words[kernels.DELAYS_COUNT]] / 1e3

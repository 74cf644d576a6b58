"""Replay of a recorded finding on a new node, with the ids of that node in place of the recorded ones.

A replay without the failure does not prove that the defect is corrected, because timing may differ. The other
way to repeat a finding is the whole campaign with its seed.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dios.errors import DiosError
from tests.fuzz.attack import acting, connect
from tests.fuzz.neighbour import Neighbour
from tests.fuzz.story import Entry, Translation
from tests.fuzz.watch import LogReader
from tests.support.node.running_node import RunningNode, exists

ANSWER_S: Final = 1.0
RECEIVE_BYTES: Final = 262_144


class Line:
    """One connection of the replay, with its recorded bytes."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock: Final = sock
        self.recorded = bytearray()
        self.got = bytearray()

    def send(self, data: bytes, *, hands: bool) -> None:
        """Send all data and receive in between; stop if the node has closed the connection."""
        read_end, write_end = os.pipe()
        try:
            while data:
                self.take(0.0)
                if not select.select([], [self.sock], [], ANSWER_S)[1]:
                    return
                fds = array("i", [read_end, write_end]).tobytes()
                beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)] if hands else []
                with contextlib.suppress(BlockingIOError):
                    data = data[self.sock.sendmsg([data], beside) :]
        except OSError:
            return
        finally:
            os.close(read_end)
            os.close(write_end)

    def answered(self, recorded: bytes, translation: Translation) -> None:
        """Wait until as much was answered as recorded, or for a moment; then compare."""
        self.recorded += recorded
        deadline = time.monotonic() + ANSWER_S
        while len(self.got) < len(self.recorded) and time.monotonic() < deadline:
            if not self.take(0.1):
                break
        translation.learn(bytes(self.recorded), bytes(self.got))

    def take(self, wait_s: float) -> bool:
        """Receive available data; return False at the end."""
        if not select.select([self.sock], [], [], wait_s)[0]:
            return True
        with contextlib.suppress(OSError):
            data = self.sock.recv(RECEIVE_BYTES)
            self.got += data
            return bool(data)
        return False


def replay(story: Sequence[Entry], node: RunningNode, path: Path, *, foreign: bool) -> str:
    """Replay a record; return the problems of the node afterwards, empty if there are none."""
    log = LogReader(node.data / "node.log")
    translation = Translation()
    lines: dict[int, Line] = {}
    neighbour = Neighbour(path)
    try:
        hands = False
        for action, who, data in story:
            if action == "open":
                with acting(foreign=foreign):
                    lines[who] = Line(connect(path))
                continue
            line = lines.get(who)
            if line is None:
                continue  # the start of this connection is no longer in the record
            if action == "hand":
                hands = True
            elif action == "send":
                line.send(translation.apply(data), hands=hands)
                hands = False
            elif action == "got":
                line.answered(data, translation)
            elif action == "shut":
                with contextlib.suppress(OSError):
                    line.sock.shutdown(socket.SHUT_WR)
            else:
                lines.pop(who).sock.close()
        neighbour.turn()
    except (OSError, DiosError, AssertionError) as error:
        deadline = time.monotonic() + ANSWER_S
        while exists(node.running.pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        return "\n".join([f"{type(error).__name__}: {error}", *log.bad_lines()])
    finally:
        for line in lines.values():
            line.sock.close()
        neighbour.close()
    return "\n".join(log.bad_lines())

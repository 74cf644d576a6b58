"""The supervisor of programs in a session: bytes, back-pressure, ends, and owners that leave or lie."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from dios.errors import ClosedError, EndOfStreamError
from dios.lib.executor import frames
from dios.lib.sandbox.processes import records
from dios.lib.sandbox.processes.records import (
    RECORD,
    AttachProgram,
    ConnectPort,
    Detached,
    Ended,
    EndInput,
    Failed,
    ListPrograms,
    Programs,
    Record,
    ResizeTerminal,
    SendSignal,
    Started,
    StartProgram,
    Streams,
    TerminalSize,
)
from dios.lib.sandbox.processes.supervisor import Ends, Supervisor, _Activity, _Program
from dios.limits import KIB, MIB, SANDBOX_PROGRAMS_MAX
from dios.transport.rings.waiting import RingReader, RingWriter
from tests.support.host import ring_ends

PATIENCE_S = 30.0
NO_STREAMS = Streams("", "", "", "")
SIZES = {"control": 4 * KIB, "status": 256 * KIB, "input": 64 * KIB, "output": 64 * KIB}


class Handle:
    """The owner's ends of a channel."""

    def __init__(self, place: Place, order: records.Order) -> None:
        rings = {name: ring_ends.Ends(size) for name, size in SIZES.items()}
        self.control, self.input = rings["control"].writer, rings["input"].writer
        self.status, self.output = rings["status"].reader, rings["output"].reader
        self._records = frames.FrameBuffer()
        self._parts = frames.FrameBuffer()
        self._received: list[Record] = []
        self.released = threading.Event()
        self.left = False
        ends = Ends(
            rings["control"].reader, rings["status"].writer, rings["input"].reader, rings["output"].writer
        )
        place.opened.append(self)
        self._rings = [row.ring for row in rings.values()]
        place.supervisor.submit(order, ends, self.released.set)

    def record(self) -> Record:
        """The next record."""
        while not self._received:
            data = self.status.read(0, PATIENCE_S)
            self._received += [records.decoded_record(body) for _, body in self._records.feed(data)]
        return self._received.pop(0)

    def send(self, control: records.Control) -> None:
        """Give an order about the program, which may end at once."""
        with contextlib.suppress(ClosedError):
            self.control.write(frames.frame(RECORD, msgspec.msgpack.encode(control)), PATIENCE_S)

    def text(self) -> dict[int, bytes]:
        """All output up to the end, by its stream."""
        streams = {1: b"", 2: b""}
        try:
            while True:
                for kind, body in self._parts.feed(self.output.read(0, PATIENCE_S)):
                    streams[kind] += bytes(body)
        except EndOfStreamError:
            return streams

    def leave(self) -> None:
        """Close all ends."""
        self.left = True
        for end in (self.control, self.input, self.status, self.output):
            end.close()
        for ring in self._rings:
            ring.close()
        self._rings.clear()


class Place:
    """A supervisor, which runs in a thread, and the numbers of programs."""

    def __init__(self) -> None:
        self.supervisor = Supervisor()
        self.opened: list[Handle] = []
        self._number = 0
        self._ended = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended:
            self.supervisor.step(0.1)

    def start(self, *arguments: str, size: TerminalSize | None = None) -> Handle:
        """Start a program, which runs then."""
        self._number += 1
        handle = Handle(self, StartProgram(NO_STREAMS, self._number, list(arguments), "", None, size))
        assert handle.record() == Started(has_terminal=size is not None)
        return handle

    def python(self, code: str, size: TerminalSize | None = None) -> Handle:
        """Start a program in Python."""
        return self.start(sys.executable, "-c", code, size=size)

    def rows(self) -> list[records.ProgramRow]:
        """The programs."""
        handle = Handle(self, ListPrograms(NO_STREAMS))
        answer = handle.record()
        self.opened.remove(handle)
        handle.leave()
        assert isinstance(answer, Programs)
        return answer.rows

    def attach(self, number: int) -> Handle:
        """Another handle of a program."""
        return Handle(self, AttachProgram(NO_STREAMS, number))

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Look again and again."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def close(self) -> None:
        """End the supervisor and its programs."""
        self._ended = True
        self._thread.join()
        for activity in list(self.supervisor._activities):
            activity.signal(signal.SIGKILL)
            if isinstance(activity, _Program):
                activity._process.wait()
            if activity.channel is not None:
                activity.channel.close()
            self.supervisor._remove(activity)
        self.supervisor._selector.close()
        os.close(self.supervisor._woken)
        os.close(self.supervisor._waking)
        for handle in self.opened:
            handle.leave()


@pytest.fixture
def place() -> Iterator[Place]:
    """A supervisor."""
    own = Place()
    yield own
    own.close()


def test_a_program_gets_its_input_and_its_output_comes(place: Place) -> None:
    """More than a stream holds, in both directions, and both streams of output."""
    handle = place.python(
        "import sys; data = sys.stdin.buffer.read(); sys.stdout.buffer.write(data); "
        "sys.stderr.write('e'); sys.exit(7)"
    )
    data = os.urandom(2 * MIB)

    def write() -> None:
        handle.input.write(data, PATIENCE_S)
        handle.send(EndInput())

    writing = threading.Thread(target=write)
    writing.start()
    assert handle.text() == {1: data, 2: b"e"}
    writing.join()
    assert handle.record() == Ended(7)
    assert handle.released.wait(PATIENCE_S)
    assert place.rows() == []


def test_output_that_nobody_reads_keeps_the_program_waiting(place: Place) -> None:
    """It has written no more than the stream, the pipe and one piece hold, and goes on when it is read."""
    handle = place.python("import os\nfor _ in range(64): os.write(1, bytes(65536))\n")
    place.wait_until(lambda: handle.output._peer[0] != 0 and _is_asleep(place))
    assert handle.output._refresh() <= SIZES["output"]
    assert place.rows()[0].status is None
    assert len(handle.text()[1]) == 64 * 65536
    assert handle.record() == Ended(0)


def _is_asleep(place: Place) -> bool:
    """True if a program of the place sleeps."""
    (program,) = place.supervisor._activities
    assert isinstance(program, _Program)
    return _state_of(program._process.pid) == "S"


def _state_of(pid: int) -> str:
    """The state of a process as a letter; that of a zombie for one that is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return "Z"
    return text.rpartition(")")[2].split()[0]


def test_a_program_that_reads_nothing_does_not_stop_the_others(place: Place) -> None:
    """A full input of one program keeps neither its signals nor another program waiting."""
    deaf = place.start("sleep", "1000")
    deaf.input.write(bytes(deaf.input.room), 0)
    other = place.start("cat")
    other.input.write(b"x", PATIENCE_S)
    other.send(EndInput())
    assert other.text()[1] == b"x"
    deaf.send(SendSignal(signal.SIGTERM))
    assert deaf.record() == Ended(-signal.SIGTERM)


def test_a_signal_is_for_the_group(place: Place) -> None:
    """What the program has started gets it, too."""
    handle = place.start("sh", "-c", "sleep 1000 & echo $!; wait")
    (body,) = [bytes(body) for _, body in frames.FrameBuffer().feed(handle.output.read(0, PATIENCE_S))]
    handle.send(SendSignal(signal.SIGKILL))
    assert handle.record() == Ended(-signal.SIGKILL)
    place.wait_until(lambda: _state_of(int(body)) == "Z")


def test_what_a_program_leaves_does_not_keep_its_streams(place: Place) -> None:
    """The output ends with the program, although another process has the pipe."""
    handle = place.start("sh", "-c", "sleep 1000 & echo $!")
    out = handle.text()[1]
    assert handle.record() == Ended(0)
    os.kill(int(out), signal.SIGKILL)


def test_a_program_that_reads_no_more_closes_its_input(place: Place) -> None:
    """The owner gets an error instead of waiting."""
    handle = place.python("import os, time; os.close(0); print('closed', flush=True); time.sleep(1000)")
    assert handle.output.read(0, PATIENCE_S)

    def write() -> None:
        while True:
            handle.input.write(bytes(KIB), PATIENCE_S)

    with pytest.raises(ClosedError):
        write()
    handle.send(SendSignal(signal.SIGKILL))
    assert handle.record() == Ended(-signal.SIGKILL)


def test_a_terminal_has_its_size_and_another_one(place: Place) -> None:
    """Ctrl-C is a letter that becomes a signal for the program."""
    handle = place.python(
        "import os, signal, time\n"
        "signal.signal(signal.SIGWINCH, lambda *_: print(*os.get_terminal_size(), flush=True))\n"
        "print(*os.get_terminal_size(), os.isatty(0), flush=True)\n"
        "while True: time.sleep(1000)\n",
        TerminalSize(20, 30),
    )
    parts = frames.FrameBuffer()

    def next_text() -> bytes:
        text = b""
        while not text.endswith(b"\n"):
            text += b"".join(bytes(body) for _, body in parts.feed(handle.output.read(0, PATIENCE_S)))
        return text

    assert next_text() == b"30 20 True\r\n"
    handle.send(ResizeTerminal(TerminalSize(40, 50)))
    assert next_text() == b"50 40\r\n"
    handle.input.write(b"\x03", PATIENCE_S)
    assert b"KeyboardInterrupt" in handle.text()[1]
    assert handle.record() == Ended(-signal.SIGINT)


def test_the_end_of_the_input_of_a_terminal_is_a_letter(place: Place) -> None:
    """A program that reads lines ends."""
    handle = place.start("cat", size=TerminalSize(24, 80))
    handle.send(EndInput())
    assert handle.record() == Ended(0)


def test_another_handle_takes_a_program(place: Place) -> None:
    """The former one is told; the program notices nothing."""
    first = place.start("cat")
    (row,) = place.rows()
    assert (row.program, row.arguments, row.status, row.is_attached) == ("cat", 0, None, True)
    second = place.attach(row.number)
    assert second.record() == Started()
    assert first.record() == Detached()
    second.input.write(b"again", PATIENCE_S)
    second.send(EndInput())
    assert second.text()[1] == b"again"
    missing = place.attach(999).record()
    assert isinstance(missing, Failed)
    assert missing.kind == "LookupError"


def test_a_program_goes_on_when_its_owner_leaves(place: Place, tmp_path: Path) -> None:
    """It gets what was sent before, and its output and its end wait for another handle."""
    gone = tmp_path / "gone"
    first = place.start("sh", "-c", 'cat; until [ -e "$0" ]; do sleep 0.01; done', str(gone))
    first.input.write(b"last words", PATIENCE_S)
    first.send(EndInput())
    first.leave()
    gone.touch()
    place.wait_until(lambda: [row.status for row in place.rows()] == [0])
    second = place.attach(1)
    assert second.record() == Started()
    assert second.record() == Ended(0)
    assert second.text()[1] == b"last words"
    place.wait_until(lambda: place.rows() == [])


def test_the_last_order_of_an_owner_counts_that_leaves_meanwhile(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the input comes when the orders have been looked at, and its owner leaves at once."""
    first = place.start("cat")
    move = Supervisor._move_input

    def moved_late(own: Supervisor, activity: _Activity, source: RingReader | None) -> None:
        if source is not None and not first.left:
            first.input.write(b"last words", PATIENCE_S)
            first.send(EndInput())
            first.leave()
        move(own, activity, source)

    monkeypatch.setattr(Supervisor, "_move_input", moved_late)
    place.wait_until(lambda: [row.status for row in place.rows()] == [0])
    assert place.attach(1).text()[1] == b"last words"


def test_an_owner_that_leaves_with_the_end_has_got_it(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program is not kept for another handle then, although its stream is closed already."""
    first = place.start("sh", "-c", "exec >&- 2>&-; exec sleep 1000")
    activity = place.supervisor._activities[0]
    place.wait_until(lambda: not activity.reading)
    write = RingWriter.write

    def written_late(writer: RingWriter, data: bytes, timeout_s: float | None = None) -> None:
        write(writer, data, timeout_s)
        if not first.left:
            assert first.record() == Ended(-signal.SIGKILL)
            first.leave()
            raise ClosedError("the reader of this stream is gone")

    monkeypatch.setattr(RingWriter, "write", written_late)
    activity.signal(signal.SIGKILL)
    place.wait_until(lambda: first.left)
    monkeypatch.undo()
    place.wait_until(lambda: place.rows() == [])


@pytest.mark.parametrize(
    "order",
    [
        StartProgram(NO_STREAMS, 5, ["nonesuch-program"], "", None, None),
        StartProgram(NO_STREAMS, 5, ["true"], "/nonesuch", None, None),
        StartProgram(NO_STREAMS, 5, ["true"], "", {"A=B": "c"}, None),
        StartProgram(NO_STREAMS, 5, ["nonesuch-program"], "", None, TerminalSize(1, 1)),
        StartProgram(NO_STREAMS, 5, [], "", None, None),
        StartProgram(NO_STREAMS, 5, ["a\0b"], "", None, None),
        ConnectPort(NO_STREAMS, 1),
    ],
    ids=lambda order: str(order)[:60],
)
def test_what_cannot_start_is_told(place: Place, order: records.Order) -> None:
    """Nothing is left of it: no program, no descriptor."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    handle = Handle(place, order)
    assert isinstance(handle.record(), Failed)
    assert handle.released.wait(PATIENCE_S)
    handle.leave()
    place.wait_until(lambda: len(list(Path("/proc/self/fd").iterdir())) <= before)
    assert place.rows() == []


def test_a_number_is_used_once(place: Place) -> None:
    """A second program with the number of one that runs is refused."""
    place.start("cat")
    assert isinstance(Handle(place, StartProgram(NO_STREAMS, 1, ["cat"], "", None, None)).record(), Failed)
    assert len(place.rows()) == 1


def test_the_number_of_programs_is_bounded(place: Place) -> None:
    """Ends that nobody reads make room for a new program, running ones do not."""
    handles = [place.start("cat") for _ in range(SANDBOX_PROGRAMS_MAX)]
    refused = Handle(place, StartProgram(NO_STREAMS, 999, ["cat"], "", None, None)).record()
    assert isinstance(refused, Failed)
    assert "end some" in refused.message
    handles[0].send(EndInput())
    handles[0].leave()
    place.wait_until(lambda: place.rows()[0].status == 0)
    place.start("cat")
    assert [row.number for row in place.rows()] == list(range(2, SANDBOX_PROGRAMS_MAX + 2))


@pytest.mark.parametrize(
    "data", [b"rubbish" * 100, frames.frame(RECORD, b"\xc1"), frames.frame(9, bytes(900))]
)
def test_an_owner_that_sends_rubbish_loses_its_channel(place: Place, data: bytes) -> None:
    """The program and others go on."""
    handle = place.start("cat")
    other = place.start("cat")
    with contextlib.suppress(ClosedError):
        handle.control.write(data, PATIENCE_S)
    assert handle.released.wait(PATIENCE_S)
    other.input.write(b"x", PATIENCE_S)
    other.send(EndInput())
    assert other.text()[1] == b"x"
    place.wait_until(lambda: [(row.number, row.is_attached) for row in place.rows()] == [(1, False)])


def test_an_owner_that_breaks_a_stream_stops_nobody_for_ever(place: Place) -> None:
    """Its programs go on, and a new handle works."""
    handle = place.start("cat")
    # The counter of the reader of output goes beyond what was written.
    handle.output._own[0] = 1 << 40
    place.wait_until(lambda: [row.is_attached for row in place.rows()] == [False])
    second = place.attach(1)
    assert second.record() == Started()
    second.input.write(b"y", PATIENCE_S)
    second.send(EndInput())
    assert second.text()[1].endswith(b"y")


def test_a_connection_reaches_a_server_and_ends_with_its_handle(place: Place) -> None:
    """Bytes go in both directions; the server sees the end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        handle = Handle(place, ConnectPort(NO_STREAMS, server.getsockname()[1]))
        accepted, _ = server.accept()
        with accepted:
            assert handle.record() == Started()
            handle.input.write(b"question", PATIENCE_S)
            assert accepted.recv(100) == b"question"
            accepted.sendall(b"answer")
            (body,) = [
                bytes(body) for _, body in frames.FrameBuffer().feed(handle.output.read(0, PATIENCE_S))
            ]
            assert body == b"answer"
            assert place.rows() == []
            handle.leave()
            assert accepted.recv(100) == b""
        assert handle.released.wait(PATIENCE_S)


def test_a_connection_that_the_server_ends_ends(place: Place) -> None:
    """What it has sent before arrives."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        handle = Handle(place, ConnectPort(NO_STREAMS, server.getsockname()[1]))
        accepted, _ = server.accept()
        accepted.sendall(bytes(MIB // 4))
        accepted.close()
        assert handle.record() == Started()
        assert len(handle.text()[1]) == MIB // 4
        assert handle.record() == Ended(0)

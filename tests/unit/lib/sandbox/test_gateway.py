"""A gateway records each request before the session can have the whole answer, and when it is cut off."""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec
import pytest

from dios.errors import EndOfStreamError, ProtocolError
from dios.lib.sandbox.network import gateway, records
from dios.lib.sandbox.network.records import RequestHead
from dios.wire.types import RequestEnd

ORIGIN = "http://127.0.0.1:80"
GET = (records.REQUEST, records.encode(RequestHead(0, "GET", "/", [])))
HEAD = (records.REQUEST, records.encode(RequestHead(0, "HEAD", "/", [])))
END = (records.END, b"")

Frame = tuple[int, bytes]


class Scene:
    """A gateway between one lane, whose frames come one after the other, and a server with one answer."""

    def __init__(self, frames: list[Frame], answer: list[bytes], events: list[str]) -> None:
        self.frames = frames
        self.answer = answer
        self.events = events

    arguments = (ORIGIN,)

    def input(self, label: str) -> object:
        """An input of the gateway: only the first lane is used."""
        return _Input(self, label)

    def connect_tcp(self, *_: object, **__: object) -> Scene:
        """The connection to the server."""
        return self

    def record_request(
        self, _network: object, _origin: int, method: str, end: RequestEnd, **_: object
    ) -> None:
        """Note a record."""
        self.events.append(f"record {method} {end.name}")

    def send(self, data: bytes, timeout: float) -> None:
        """Take bytes for the server."""

    def receive(self, size: int, timeout: float) -> bytes:
        """Return the next bytes of the server."""
        if not self.answer:
            raise EndOfStreamError("the server has ended")
        return self.answer.pop(0)

    def close(self) -> None:
        """Close nothing."""


class _Input:
    def __init__(self, scene: Scene, label: str) -> None:
        self.reader = self.writer = scene if label == records.request_label(0) else None
        self.label = label

    def read_bytes(self) -> bytes:
        """Return no added headers, and no authorities."""
        return msgspec.msgpack.encode({}) if self.label == gateway.ADDED else b""


class _Lane:
    def __init__(self, scene: Scene | None, _: object) -> None:
        self.scene = scene

    def receive(self, check: Callable[[], None] | None = None) -> Frame:
        """Return the next frame; the unused lanes wait for ever."""
        if self.scene is None:
            threading.Event().wait()
        assert self.scene is not None
        if not self.scene.frames:
            raise EndOfStreamError("the session has ended")
        return self.scene.frames.pop(0)

    def peek(self) -> int:
        """Return the kind of the next frame, or 0."""
        return self.scene.frames[0][0] if self.scene is not None and self.scene.frames else 0

    def send(self, kind: int, body: bytes = b"") -> None:
        """Note a frame for the session."""
        assert self.scene is not None
        self.scene.events.append(f"frame {kind}")


def played(
    monkeypatch: pytest.MonkeyPatch, frames: list[Frame], *answer: bytes, events: list[str] | None = None
) -> list[str]:
    """Everything that the gateway does, in order, until its session ends; ``events`` gets it as well."""
    scene = Scene(frames, list(answer), [] if events is None else events)
    monkeypatch.setattr(gateway, "connect", lambda: scene)
    monkeypatch.setattr(gateway, "Lane", _Lane)
    gateway.serve()
    return scene.events


RECORDED = "record GET ANSWERED"
RESPONSE, DATA, DONE = (f"frame {kind}" for kind in (records.RESPONSE, records.DATA, records.DONE))


def test_the_record_comes_before_the_last_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The part that completes a declared length follows it; earlier parts do not wait."""
    parts = (b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n", b"abc", b"def")
    assert played(monkeypatch, [GET, END], *parts) == [RESPONSE, DATA, RECORDED, DATA, DONE]


@pytest.mark.parametrize("length", [b"Content-Length: 0\r\n", b""])
def test_the_record_comes_before_an_answer_without_a_body(
    monkeypatch: pytest.MonkeyPatch, length: bytes
) -> None:
    """Its head is all of it: with the length 0, or with a status that has no body."""
    status = b"200 OK" if length else b"204 No Content"
    events = played(monkeypatch, [GET, END], b"HTTP/1.1 " + status + b"\r\n" + length + b"\r\n")
    assert events == [RECORDED, RESPONSE, DONE]


def test_the_record_comes_before_the_answer_to_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """It declares a length and has no body."""
    events = played(monkeypatch, [HEAD, END], b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n")
    assert events == ["record HEAD ANSWERED", RESPONSE, DONE]


def test_an_answer_of_unknown_length_ends_after_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parts are not held back, because only the last frame completes it."""
    parts = (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"3\r\nabc\r\n0\r\n\r\n")
    assert played(monkeypatch, [GET, END], *parts) == [RESPONSE, DATA, RECORDED, DONE]


ANSWER = (b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n", b"abc")


@pytest.mark.parametrize("frames", [[GET], [GET, (records.BODY, b"x")]], ids=["ends", "too long"])
def test_a_request_that_is_cut_off_is_recorded(monkeypatch: pytest.MonkeyPatch, frames: list[Frame]) -> None:
    """By the end of the session, or by a body that is longer than declared."""
    events = played(monkeypatch, frames, *ANSWER)
    assert sum(event.startswith("record GET ") for event in events) == 1


@pytest.mark.parametrize(
    "frames",
    [[GET, END, (records.BODY, b"x")], [GET, (records.DONE, b"")]],
    ids=["body after the end", "no such frame"],
)
def test_a_session_that_breaks_the_protocol_ends_the_gateway(
    monkeypatch: pytest.MonkeyPatch, frames: list[Frame]
) -> None:
    """With the error, after the record of the request that went out."""
    events: list[str] = []
    with pytest.raises(ProtocolError, match="was not due"):
        played(monkeypatch, frames, *ANSWER, events=events)
    assert sum(event.startswith("record GET ") for event in events) == 1

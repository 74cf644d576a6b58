"""The statistics socket of a running function, which only its user can open."""

from __future__ import annotations

import contextlib
import socket
import stat
import threading
from pathlib import Path

import pytest

from dios.errors import Busy, InvalidError
from dios.limits import SPRAYER_ANSWER_BYTES_MAX
from dios.sprayer.runtime.statistics_socket import (
    JsonObject,
    NotRunningError,
    names,
    read_statistics,
    serve_statistics,
)


def says(number: int = 1) -> JsonObject:
    """An answer."""
    return {"packets": number}


def test_who_asks_gets_what_is_there_now(tmp_path: Path) -> None:
    """Each request gets the current statistics; after the end there is no answer."""
    count = iter(range(10))
    with serve_statistics("mine", lambda: says(next(count)), tmp_path) as path:
        assert [read_statistics("mine", tmp_path), read_statistics("mine", tmp_path)] == [
            {"packets": 0},
            {"packets": 1},
        ]
        assert names(tmp_path) == ["mine"]
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert names(tmp_path) == []
    with pytest.raises(NotRunningError, match="no function named mine is running"):
        read_statistics("mine", tmp_path)


def test_a_name_is_had_once(tmp_path: Path) -> None:
    """A second function with the same name is refused while the first runs; the first continues."""
    with serve_statistics("mine", says, tmp_path):
        with (
            pytest.raises(Busy, match="a function named mine is running"),
            serve_statistics("mine", says, tmp_path),
        ):
            pass
        assert read_statistics("mine", tmp_path) == says()


def test_what_a_killed_one_left_is_taken_away(tmp_path: Path) -> None:
    """A socket file without a process does not block its name."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left:
        left.bind(str(tmp_path / "mine.sock"))
    with pytest.raises(NotRunningError):
        read_statistics("mine", tmp_path)
    with serve_statistics("mine", says, tmp_path):
        assert read_statistics("mine", tmp_path) == says()


@pytest.mark.parametrize("name", ["", "../x", "a b", ".x", "x" * 65])
def test_a_name_is_a_file_s_and_short(tmp_path: Path, name: str) -> None:
    """A name that would be a path, or is too long, is refused."""
    with pytest.raises(InvalidError, match="not a valid name"), serve_statistics(name, says, tmp_path):
        pass


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", NotRunningError),
        (b"{", NotRunningError),
        (b"[1]", InvalidError),
        (b" " * (SPRAYER_ANSWER_BYTES_MAX + 70_000), InvalidError),
    ],
)
def test_answers_are_bounded_and_looked_at(tmp_path: Path, data: bytes, told: type[Exception]) -> None:
    """An answer that is not JSON, or too large, is an error."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "mine.sock"))
        listener.listen(1)

        def answer() -> None:
            asked, _ = listener.accept()
            with asked, contextlib.suppress(OSError):
                asked.sendall(data)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(told):
            read_statistics("mine", tmp_path)
        thread.join()


def test_who_hangs_up_harms_nobody(tmp_path: Path) -> None:
    """A client that leaves without reading does not affect the others."""
    with serve_statistics("mine", lambda: {"long": "x" * 500_000}, tmp_path) as path:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as rude:
            rude.connect(str(path))
        assert len(str(read_statistics("mine", tmp_path)["long"])) == 500_000

"""The arguments of an executor, without a node."""

from __future__ import annotations

import os

import msgspec
import pytest

from dios.errors import InvalidError
from dios.lib.executor import frames
from dios.lib.executor.executor import checked_variables
from dios.lib.executor.worker import _Worker


def test_variables_of_any_bytes_reach_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a system are bytes; text that no system has is refused where the executor is made."""
    monkeypatch.setenv("RAW_\udcfe", "before")
    variables = {"RAW_\udcfe": "\udcff", "ä": "ö"}
    monkeypatch.setenv("ä", "before")
    body = memoryview(msgspec.msgpack.encode(checked_variables(variables)))
    object.__new__(_Worker)._obey(frames.ENVIRONMENT, body)
    assert {name: os.environ[name] for name in variables} == variables
    with pytest.raises(InvalidError, match="surrogates"):
        checked_variables({"A": "\ud800"})

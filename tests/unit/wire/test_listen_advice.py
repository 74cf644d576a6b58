from __future__ import annotations

import ast
import errno
from pathlib import Path

import pytest

from dios.bridges.mcp_http import listening
from dios.errors import Code, InvalidError
from dios.host.network.addresses import network_failure
from dios.node.cluster import free_address
from dios.wire.addresses import listen_advice

SOURCES = Path(__file__).parents[3] / "dios"


def test_an_address_of_another_machine_is_told_as_one() -> None:
    """Another port cannot help where this machine has not the address."""
    advice = listen_advice(OSError(errno.EADDRNOTAVAIL, "x"))
    assert "no such address" in advice
    assert "port" not in advice
    code, told = network_failure(OSError(errno.EADDRNOTAVAIL, "x"), "192.0.2.1:80")
    assert code is Code.EHOSTUNREACH, "nobody else is busy there"
    assert told.endswith(advice)
    with pytest.raises(InvalidError, match="no such address"):
        free_address("192.0.2.1", 7400)


def test_a_port_in_use_is_told_as_one() -> None:
    """The port of another program is told with the command that shows it."""
    with listening(0) as taken, pytest.raises(InvalidError, match=r"ss -ltnp.*choose another port"):
        listening(taken.getsockname()[1])


def test_the_advice_is_in_one_place() -> None:
    """No module advises another port or address by itself."""
    advising = [
        str(path.relative_to(SOURCES))
        for path in sorted(SOURCES.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and "hoose another port" in str(node.value)
    ]
    assert advising == ["wire/addresses.py"]

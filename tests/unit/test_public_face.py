"""The names of ``import dios``, which programs rely on."""

from __future__ import annotations

import ast
import inspect
import pydoc
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import dios

HEAVY = ("trio", "msgspec", "blake3", "asyncio", "lmdb", "cryptography", "dios.client.sync.node")


def loaded_by(code: str) -> set[str]:
    """The modules that a fresh interpreter has after ``code``."""
    script = f"{code}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=True, text=True, timeout=30
    )
    return set(done.stdout.split())


def test_every_public_name_loads() -> None:
    """Each name that is listed is there, and dir shows it before it is loaded."""
    for name in dios._HOME_OF:
        assert getattr(dios, name) is not None
        assert name in dir(dios)


def test_type_checkers_and_homes_agree() -> None:
    """The names that type checkers see as public are those that load, each from the same place."""
    seen = {
        alias.asname: node.module
        for node in ast.walk(ast.parse(Path(dios.__file__).read_text()))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    }
    assert seen == dios._HOME_OF


def test_help_is_short_and_names_everything() -> None:
    """``help(dios)`` fits on a few screens, and has each public name in a sentence or a list."""
    for name in dir(dios):
        getattr(dios, name)  # classes that are loaded are not shown in full either
    shown = pydoc.plain(pydoc.render_doc(dios))
    assert len(shown) < 8_000
    assert set(dir(dios)) <= set(re.findall(r"\w+", dios.__doc__ or ""))


def _public_callables() -> Iterator[tuple[str, Callable[..., object]]]:  # type: ignore[explicit-any]
    for name in dir(dios):
        value = getattr(dios, name)
        if not callable(value):
            continue
        yield name, value
        if inspect.isclass(value):
            for inner, member in vars(value).items():
                if not inner.startswith("_") and inspect.isroutine(getattr(value, inner)):
                    yield f"{name}.{inner}", member


def test_signatures_are_real() -> None:
    """No function hides its parameters behind ``*args, **kwargs``, except those for a call of another one."""
    hidden = set()
    for name, function in _public_callables():
        inner = getattr(function, "__func__", function)
        kinds = {parameter.kind for parameter in inspect.signature(inner).parameters.values()}
        if {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD} <= kinds:
            hidden.add(name)
    assert hidden == {"Executor.submit", "Executor.actor", "Batch.add", "AsyncBatch.add", "Sandbox.call"}


def test_the_words_of_the_documentation_are_there() -> None:
    """What README and thesis call things is what a program writes."""
    calls = "connect open_node syscalls"
    words = "DURABLE_BLOB SHMEM_BLOB SHMEM_STREAM EXCL MRSW SRMW ANY Conflict DiosError"
    assert {*calls.split(), *words.split()} <= set(dir(dios))


def test_unknown_name_is_an_attribute_error() -> None:
    """A name that does not exist fails as in any module."""
    with pytest.raises(AttributeError, match="'nonsense'"):
        dios.nonsense  # noqa: B018 - looking is the test


def test_import_is_light() -> None:
    """Importing dios alone loads nothing of weight."""
    assert not loaded_by("import dios") & set(HEAVY)


def test_blocking_face_needs_no_event_loop() -> None:
    """A program that only connects never loads trio, asyncio or the store."""
    loaded = loaded_by("import dios\ndios.connect, dios.EXCL, dios.Conflict, dios.syscalls")
    assert "dios.client.sync.node" in loaded
    assert not loaded & {"trio", "asyncio", "lmdb", "cryptography", "numpy", "dios.core.machine"}


def test_the_async_client_loads_no_event_loop() -> None:
    """The async client loads neither loop before a program that runs on one opens a node."""
    loaded = loaded_by("import dios\ndios.aio.open_node")
    assert "dios.client.aio.node" in loaded
    assert not loaded & {"trio", "asyncio", "anyio"}


def test_a_tasks_entry_loads_no_event_loop() -> None:
    """The modules that the zygote loads for every task contain no event loop, no store and no numbers."""
    heavy = {"trio", "asyncio", "lmdb", "cryptography", "numpy", "pandas", "polars", "pyarrow"}
    assert not loaded_by("import dios.lib.executor.task_entry") & heavy


def test_a_node_alone_loads_no_cluster() -> None:
    """The modules of a daemon contain no certificates, no connections with other nodes and no numbers."""
    loaded = loaded_by("import dios.node.daemon, dios.node.serve")
    assert "dios.node.assembly" in loaded
    assert not loaded & {"cryptography", "numpy", "dios.node.cluster_port", "dios.host.peers.links"}

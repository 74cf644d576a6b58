"""The names of ``import dios``, which programs rely on."""

from __future__ import annotations

import subprocess
import sys

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
    for name in dios.__all__:
        assert getattr(dios, name) is not None
        assert name in dir(dios)


def test_list_and_homes_agree() -> None:
    """The list of names and the places they load from say the same."""
    assert sorted(dios._HOME_OF) == sorted(dios.__all__)


def test_the_words_of_the_documentation_are_there() -> None:
    """What README and thesis call things is what a program writes."""
    calls = "connect open_node syscalls"
    words = "DURABLE_BLOB SHMEM_BLOB SHMEM_STREAM EXCL MRSW SRMW ANY Conflict DiosError"
    assert {*calls.split(), *words.split()} <= set(dios.__all__)


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


def test_a_tasks_entry_loads_no_event_loop() -> None:
    """What the zygote preloads for every task has neither trio nor asyncio in it."""
    assert not loaded_by("import dios.client.task_main") & {"trio", "asyncio", "lmdb", "cryptography"}

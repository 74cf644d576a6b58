"""The insides of this machine, as a node reports them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dios.node import machine
from dios.wire.messages import ThreadPlace


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _machine(root: Path) -> None:
    """Write two sockets with a cache each and two cores of two threads; six of eight are usable."""
    cpus = root / "sys/devices/system/cpu"
    _write(cpus / "online", "0-7\n")
    for cpu in range(8):
        socket = cpu % 2
        shared = "0,2,4,6" if socket == 0 else "1,3,5,7"
        topology = {
            "core_cpus_list": f"{cpu % 4},{cpu % 4 + 4}",
            "package_cpus_list": shared,
            "core_id": f"{cpu % 4 // 2}",
            "physical_package_id": f"{socket}",
        }
        for name, text in topology.items():
            _write(cpus / f"cpu{cpu}/topology/{name}", text)
        for index, (level, size, which) in enumerate(
            ((2, "1M", f"{cpu % 4},{cpu % 4 + 4}"), (3, "8M", shared))
        ):
            for name, text in {
                "level": f"{level}",
                "type": "Unified",
                "size": size,
                "shared_cpu_list": which,
            }.items():
                _write(cpus / f"cpu{cpu}/cache/index{index}/{name}", text)
    for node in range(2):
        _write(root / f"sys/devices/system/node/node{node}/cpulist", "0,2,4,6" if node == 0 else "1,3,5,7")
    _write(root / "proc/self/status", "Cpus_allowed_list:\t0-5\n")
    _write(root / "proc/meminfo", "MemTotal: 1024 kB\n")


def test_threads_know_their_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of a core, a last-level cache, a NUMA node and a socket have the same number of that part."""
    _machine(tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    layout = machine.insides(tmp_path / "sys", tmp_path / "proc")
    cores = [thread.core for thread in layout.threads]
    assert [thread.thread for thread in layout.threads] == list(range(6))
    assert (cores[0], cores[1]) == (cores[4], cores[5])
    assert len(set(cores)) == 4
    for part in ("cache", "numa", "socket"):
        assert [getattr(thread, part) for thread in layout.threads] == [0, 1, 0, 1, 0, 1]
    assert layout.counts == {"sockets": 2, "numa_nodes": 2, "last_level_caches": 2, "cores": 4, "threads": 6}


def test_a_machine_that_shows_nothing_is_flat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thread has a core of its own in one socket, and the reason is given."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 5})
    _write(tmp_path / "sys/devices/system/cpu/online", "0-999999999\n")
    layout = machine.insides(tmp_path / "sys", tmp_path / "proc")
    assert layout.threads == (ThreadPlace(2, 2, 0, 0, 0), ThreadPlace(5, 5, 0, 0, 0))
    assert layout.missing

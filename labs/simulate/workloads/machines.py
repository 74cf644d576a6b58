"""The machines of simulations: those of the thesis' testbeds, and the mix of the 2011 Google cluster.

Table 8.1 and Table 8.3 give names, cores, clocks and memory. The other numbers (caches, bandwidths, speed of
a core at its clock) are from the processors' data sheets, rounded, or chosen so that the order of
Figure 2.4 results: types A and D compute fastest of the old ones, and A has the fast disks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from dios.firmament.descriptors import Inner, Level, MachineDescriptor, Resources
from labs.simulate.workloads.events import MachineUp
from labs.simulate.workloads.interference import MachineModel

MIB: Final = 2.0**20
GIB: Final = 2.0**30

_ROWS: Final = (
    # name, title, sockets, cores, threads, GHz, speed, memory GiB, cache MiB, memory GB/s, disk MB/s, Gbit/s
    ("A", "GW GR380, Intel Xeon E5520", 1, 4, 8, 2.26, 0.80, 12, 8, 18, 170, 10),
    ("B", "H8SGL-F, AMD Opteron 6168", 1, 12, 12, 1.9, 0.52, 32, 12, 24, 110, 10),
    ("C", "Dell R420, Intel Xeon E5-2420", 2, 12, 24, 1.9, 0.72, 64, 15, 48, 130, 10),
    ("D", "Dell R415, AMD Opteron 4234", 2, 12, 12, 3.1, 0.78, 64, 6, 32, 130, 10),
    ("E", "SM AS1042, AMD Opteron 6168", 4, 48, 48, 1.9, 0.52, 64, 12, 72, 120, 10),
    ("M", "Dell R320, Intel Xeon E5-2430Lv2", 1, 6, 12, 2.4, 1.0, 64, 15, 30, 120, 10),
    ("pandaboard", "Pandaboard, ARM Cortex-A9", 1, 2, 2, 1.0, 0.14, 1, 1, 2, 30, 0.1),
    ("wandboard", "Wandboard, ARM Cortex-A9", 1, 4, 4, 1.0, 0.14, 2, 1, 3, 90, 1),
    ("itanium", "Intel Itanium 2 9015", 4, 8, 8, 1.4, 0.35, 16, 12, 16, 80, 1),
)


def _model(
    row: tuple[str, str, int, int, int, float, float, float, float, float, float, float],
) -> MachineModel:
    name, title, sockets, cores, threads, clock, speed, memory, cache, bandwidth, disk, network = row
    return MachineModel(
        name=name,
        title=title,
        sockets=sockets,
        cores=cores,
        threads=threads,
        clock_hz=clock * 1e9,
        speed=speed,
        memory=memory * GIB,
        cache=cache * MIB,
        memory_bandwidth=bandwidth * 1e9,
        disk_bandwidth=disk * 1e6,
        network_bandwidth=network * 1e9 / 8,
    )


MACHINE_TYPES: Final = {row[0]: _model(row) for row in _ROWS}
"""Tables 8.1 (A to E, M) and 8.3, by the thesis' letter or name of the type."""

SRG_CLUSTER: Final = ("A",) * 4 + ("B",) * 2 + ("C",) * 2 + ("D", "E")
"""Table 8.1a: ten machines of five types."""
MODEL_CLUSTER: Final = ("M",) * 28
"""Table 8.1b: the 28 machines in two racks of §8.1."""

GOOGLE_SLOTS: Final = 24
"""Slots of every machine of the Google cluster: one for each hardware thread of type C (§8.4)."""
GOOGLE_CPUS: Final = 24.0
"""Hardware threads of a machine whose normalised capacity is 1, the largest of the cluster."""
GOOGLE_MEMORY: Final = 64 * GIB
"""Bytes of memory of such a machine."""
RACK_MACHINES: Final = 48
"""Machines of a rack if the trace gives none: a usual full rack."""

GOOGLE_MIX: Final = (
    # machines, normalised CPUs, normalised memory: Reiss et al. (SoCC 2012), Table 1
    (6732, 0.50, 0.50),
    (3863, 0.50, 0.25),
    (1001, 0.50, 0.75),
    (795, 1.00, 1.00),
    (126, 0.25, 0.25),
    (52, 0.50, 0.12),
    (5, 0.50, 0.03),
    (5, 0.50, 0.97),
    (3, 1.00, 0.50),
    (1, 0.50, 0.06),
)
"""The configurations of the machines at the beginning of the 2011 trace, with their counts."""


def inner_tree(model: MachineModel) -> tuple[Inner, ...]:
    """Return the sockets, last-level caches, cores and threads of a machine type (§6.5.2)."""
    cores = model.cores // model.sockets
    threads = model.threads // model.cores
    sockets: list[Inner] = []
    for socket in range(model.sockets):
        inside = tuple(
            Inner(
                Level.CORE,
                f"core{socket}.{core}",
                tuple(Inner(Level.THREAD, f"thread{socket}.{core}.{thread}") for thread in range(threads)),
            )
            for core in range(cores)
        )
        sockets.append(
            Inner(Level.SOCKET, f"socket{socket}", (Inner(Level.CACHE, f"cache{socket}", inside),))
        )
    return tuple(sockets)


def thesis_machines(
    types: Sequence[str], *, racks: int = 2, slots: int | None = None, topology: bool = False
) -> list[MachineUp]:
    """Return machines of the thesis' types that join at time 0.

    Args:
        types: names of ``MACHINE_TYPES``, one for each machine.
        racks: the number of racks, filled in turn.
        slots: the number of slots of each machine; None: one for each hardware thread.
        topology: add sockets, caches, cores and threads as vertices.
    """
    return [
        MachineUp(
            0.0,
            MachineDescriptor(
                machine=number,
                name=f"{name.lower()}{number}",
                rack=f"rack{number % racks}",
                capacity=MACHINE_TYPES[name].capacity(),
                slots=MACHINE_TYPES[name].threads if slots is None else slots,
                machine_type=name,
                inner=inner_tree(MACHINE_TYPES[name]) if topology else (),
            ),
            name,
        )
        for number, name in enumerate(types)
    ]


def google_machines(count: int, seed: int, *, topology: bool = False) -> Iterator[MachineUp]:
    """Yield machines in the mix of the Google cluster, shuffled by ``seed``, in racks of 48 (§8.4)."""
    random = np.random.default_rng([seed, 1])
    weights = np.array([row[0] for row in GOOGLE_MIX], np.float64)
    # Deterministic counts, with the remainder in the most frequent configuration: random ones would make
    # a small cluster depend too much on the seed.
    numbers = np.floor(weights / weights.sum() * count).astype(np.int64)
    numbers[0] += count - numbers.sum()
    kinds = random.permutation(np.repeat(np.arange(len(GOOGLE_MIX)), numbers))
    inner = inner_tree(MACHINE_TYPES["C"]) if topology else ()
    for number, kind in enumerate(kinds):
        _, cpus, memory = GOOGLE_MIX[int(kind)]
        yield MachineUp(0.0, google_machine(number, cpus, memory, rack=number // RACK_MACHINES, inner=inner))


def google_machine(
    machine: int, cpus: float, memory: float, *, rack: int, inner: tuple[Inner, ...] = (), platform: str = ""
) -> MachineDescriptor:
    """Return a machine of the Google cluster; a normalised capacity of 0 means that it is not known."""
    return MachineDescriptor(
        machine=machine,
        name=f"m{machine}",
        rack=f"r{rack}",
        capacity=Resources(cpus * GOOGLE_CPUS, memory * GOOGLE_MEMORY),
        slots=GOOGLE_SLOTS,
        machine_type=f"{platform}{cpus:g}/{memory:g}",
        inner=inner,
    )

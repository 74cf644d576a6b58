"""Made-up workloads, machines, blocks, and the model of how programs disturb each other."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from collections import Counter

import numpy as np
import pytest

from dios.errors import InvalidError
from dios.firmament.descriptors import Kind, Level
from labs.simulate.scheduling.command import MIXES
from labs.simulate.scheduling.queues import QueueScheduler
from labs.simulate.scheduling.run import SimulationConfig, simulate
from labs.simulate.workloads import google_like as workload_module
from labs.simulate.workloads.block_map import BLOCK_BYTES, FILE_BYTES_MAX, BlockMap, file_size
from labs.simulate.workloads.events import Happening, JobSubmission, MachineUp
from labs.simulate.workloads.google_like import SERVICE_SHARE, WAVE, GoogleLike, GoogleWorkload
from labs.simulate.workloads.interference import ProgramModel, pace_alone, paces_together
from labs.simulate.workloads.machines import (
    GOOGLE_MIX,
    MACHINE_TYPES,
    SRG_CLUSTER,
    google_machines,
    inner_tree,
    thesis_machines,
)
from labs.simulate.workloads.mix import (
    CPU_SPIN,
    IO_READ,
    MEM_BIG,
    MEM_FIT,
    RESUBMITTED_S,
    TABLE_8_2,
    MixWorkload,
)

SEED = 5
PROGRAMS = [entry.program for entry in TABLE_8_2] + [ProgramModel("network", cpu=0.1, network=1e9)]


def events_of(parameters: GoogleLike) -> list[Happening]:
    """All events of a made-up workload."""
    return list(GoogleWorkload(parameters).events())


def submissions(events: list[Happening]) -> list[JobSubmission]:
    """The jobs among events."""
    return [event for event in events if isinstance(event, JobSubmission)]


# The Google-like workload ---------------------------------------------------------------------------


def test_a_seed_gives_one_workload() -> None:
    """Equal seeds give equal events, other seeds other ones."""
    parameters = GoogleLike(40, seed=SEED, blocks=True)
    assert events_of(parameters) == events_of(parameters)
    assert events_of(parameters) != events_of(GoogleLike(40, seed=SEED + 1, blocks=True))


def test_events_come_in_order_and_within_the_time() -> None:
    """Machines and what runs already come at 0, arrivals after, none beyond the end."""
    times = [event.time for event in events_of(GoogleLike(100, seed=SEED, seconds=1800))]
    assert times == sorted(times)
    assert times[0] == 0
    assert 0 < times[-1] < 1800


@pytest.mark.parametrize("load", [0.3, 0.9])
def test_about_the_load_that_was_asked_for_runs(load: float) -> None:
    """Over an hour on a queue the share of slots in use stays near the load."""
    workload = GoogleWorkload(GoogleLike(300, seed=SEED, load=load))
    outcome = simulate(SimulationConfig(workload, QueueScheduler(SEED), 3600, round_interval=20))
    assert outcome.utilisation == pytest.approx(load, rel=0.12), f"seed {SEED}"


def test_services_hold_most_and_come_seldom() -> None:
    """Most jobs that come are batch; most of what runs is services (§2.1.1)."""
    jobs = submissions(events_of(GoogleLike(300, seed=SEED)))
    running = Counter[Kind]()
    for submission in jobs:
        if submission.time == 0:
            running[submission.job.kind] += len(submission.tasks)
    arriving = Counter(arrival.job.kind for arrival in jobs if arrival.time > 0)
    assert running[Kind.SERVICE] / running.total() == pytest.approx(SERVICE_SHARE, abs=0.02)
    assert arriving[Kind.BATCH] > 5 * arriving[Kind.SERVICE], f"seed {SEED}: {arriving}"


def test_jobs_and_runtimes_have_heavy_tails() -> None:
    """Most jobs have one task and last minutes; a few have a large share of all."""
    jobs = [
        submission
        for submission in submissions(events_of(GoogleLike(4000, seed=SEED)))
        if submission.time > 0
    ]
    sizes = np.sort([len(submission.tasks) for submission in jobs])
    assert np.median(sizes) == 1, f"seed {SEED}"
    assert sizes[-len(sizes) // 20 :].sum() > 0.5 * sizes.sum(), f"seed {SEED}"
    runtimes = np.array(
        [submission.tasks[0].work for submission in jobs if submission.job.kind is Kind.BATCH]
    )
    assert 200 < np.median(runtimes) < 900, f"seed {SEED}"
    assert runtimes.mean() > 3 * np.median(runtimes), f"seed {SEED}"


@pytest.mark.parametrize("service", [False, True])
def test_what_runs_at_the_beginning_is_in_balance_with_what_comes(
    service: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    """Weighted by length, runtimes have the plain ones' mean as harmonic mean: as many end as come."""
    random = np.random.default_rng(SEED)
    plain, weighted = (
        np.array([draw(random.random(), random.normal(), service=service) for _ in range(40_000)])
        for draw in (workload_module._runtime, workload_module._running_runtime)
    )
    mean = workload_module._mean_runtime(service=service)
    assert plain.mean() == pytest.approx(mean, rel=0.1), f"seed {SEED}"
    assert 1 / np.mean(1 / weighted) == pytest.approx(mean, rel=0.1), f"seed {SEED}"


def test_submissions_go_up_and_down_over_the_day() -> None:
    """The busiest six hours have about (1 + 0.9 w) / (1 - 0.9 w) times the jobs of the quietest."""
    workload = GoogleWorkload(GoogleLike(60, seed=SEED, seconds=86_400))
    times = [event.time for event in workload.events() if isinstance(event, JobSubmission) and event.time > 0]
    up = sum(10_800 <= time < 32_400 for time in times)
    down = sum(54_000 <= time < 75_600 for time in times)
    assert up / down == pytest.approx((1 + 0.9 * WAVE) / (1 - 0.9 * WAVE), rel=0.25), f"seed {SEED}"


def test_events_are_not_kept() -> None:
    """A long run is made as it is asked for: an hour's events take no more than a few at a time."""
    workload = GoogleWorkload(GoogleLike(150, seed=SEED, seconds=12 * 3600))
    events = workload.events()
    for _ in range(300):
        next(events)
    tracemalloc.start()
    count = sum(len(event.tasks) for event in events if isinstance(event, JobSubmission))
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count > 2_000
    assert kept < 200_000, f"seed {SEED}: {kept} bytes are kept after {count} tasks"


def test_more_events_at_the_same_load() -> None:
    """A rate of four brings four times the batch jobs, each a quarter as long."""
    slow, fast = (
        [
            submission
            for submission in submissions(events_of(GoogleLike(300, seed=SEED, rate=rate)))
            if submission.time > 0
        ]
        for rate in (1.0, 4.0)
    )
    assert len(fast) == pytest.approx(4 * len(slow), rel=0.2), f"seed {SEED}"


@pytest.mark.parametrize(
    ("field", "value"), [("machines", 0), ("load", 0.0), ("load", -1.0), ("load", 11.0), ("rate", 0.0)]
)
def test_what_cannot_be_made_up_is_refused(field: str, value: float) -> None:
    """The message names the value."""
    with pytest.raises(InvalidError, match=f"{value:g}"):
        GoogleLike(**{"machines": 10, field: value})  # type: ignore[arg-type]


# Machines -------------------------------------------------------------------------------------------


def test_machines_come_in_the_mix_of_the_cell() -> None:
    """Each configuration of Reiss et al., Table 1, has its share of 12,550 machines."""
    machines = [up.machine for up in google_machines(12_550, SEED)]
    counted = Counter(machine.machine_type for machine in machines)
    total = sum(row[0] for row in GOOGLE_MIX)
    for number, cpus, memory in GOOGLE_MIX:
        assert abs(counted[f"{cpus:g}/{memory:g}"] - number / total * 12_550) < 12
    assert len(machines) == 12_550
    assert max(Counter(machine.rack for machine in machines).values()) == 48


@pytest.mark.parametrize("name", sorted(MACHINE_TYPES))
def test_the_tree_of_a_machine_has_its_threads(name: str) -> None:
    """The leaves are as many as Table 8.1 says hardware threads (§6.5.2)."""
    model = MACHINE_TYPES[name]
    inner = list(inner_tree(model))
    leaves = 0
    while inner:
        part = inner.pop()
        leaves += part.level is Level.THREAD
        inner += part.children
    assert leaves == model.threads


# Blocks ---------------------------------------------------------------------------------------------


def test_three_copies_on_two_racks() -> None:
    """A block lies on three machines, two of them in another rack than the first."""
    machines = [up.machine for up in google_machines(200, SEED)]
    rack = {machine.machine: machine.rack for machine in machines}
    blocks = BlockMap(machines, SEED)
    for file, block in itertools.product(range(50), range(4)):
        first, second, third = blocks.copies(file, block)
        assert len({first, second, third}) == 3
        assert rack[first] != rack[second] == rack[third]


def test_blocks_are_spread_evenly() -> None:
    """No machine has many more blocks than another."""
    machines = [up.machine for up in google_machines(96, SEED)]
    blocks = BlockMap(machines, SEED)
    counted = Counter(machine for file in range(8_000) for machine in blocks.copies(file, 0))
    assert min(counted.values()) > 0.7 * 250
    assert max(counted.values()) < 1.3 * 250


@pytest.mark.parametrize("machines", [1, 2, 3])
def test_a_small_cluster_has_fewer_copies(machines: int) -> None:
    """As many copies as there are machines, up to three."""
    ups = thesis_machines(("M",) * machines, racks=1)
    copies = BlockMap([up.machine for up in ups], SEED).copies(3, 0)
    assert len(set(copies)) == len(copies) == machines


def test_an_input_is_its_blocks() -> None:
    """Blocks of 64 MB make up a file, the last one may be short."""
    blocks = BlockMap([up.machine for up in thesis_machines(("M",) * 6)], SEED)
    for size in (1, BLOCK_BYTES, 3 * BLOCK_BYTES + 5):
        parts = blocks.input_of(7, size)
        assert sum(part.size for part in parts) == size
        assert len(parts) == math.ceil(size / BLOCK_BYTES)
        assert all(0 < part.size <= BLOCK_BYTES for part in parts)


def test_files_are_clamped_as_in_the_thesis() -> None:
    """Sizes go from 64 MB to 20 GB and grow with the quantile (§8.4)."""
    sizes = [file_size(at) for at in (1e-6, 0.2, 0.5, 0.9, 0.99, 1 - 1e-6)]
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1]) == (BLOCK_BYTES, FILE_BYTES_MAX)


def test_blocks_need_machines() -> None:
    """A file system on nothing is refused."""
    with pytest.raises(InvalidError, match="machines"):
        BlockMap([], SEED)


# Interference ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["A", "C", "E", "M"])
def test_one_more_program_makes_no_other_faster(name: str) -> None:
    """Whatever runs on a machine, another one slows everybody down or leaves them alone (§2.1.3)."""
    model = MACHINE_TYPES[name]
    random = np.random.default_rng(SEED)
    for _ in range(150):
        there = [PROGRAMS[at] for at in random.integers(len(PROGRAMS), size=random.integers(1, 14))]
        before = paces_together(there, model)
        after = paces_together([*there, PROGRAMS[random.integers(len(PROGRAMS))]], model)
        for old, new in zip(before, after, strict=False):
            assert new.stretch >= old.stretch * (1 - 1e-6), f"seed {SEED}, type {name}: {there}"


def test_no_resource_gives_more_than_it_has() -> None:
    """What all programs move in a second stays within memory, disk and network."""
    model = MACHINE_TYPES["M"]
    random = np.random.default_rng(SEED)
    for _ in range(100):
        there = [PROGRAMS[at] for at in random.integers(len(PROGRAMS), size=14)]
        paces = paces_together(there, model)
        moved = np.array(
            [
                (pace.misses * 64 / pace.stretch, program.disk / pace.stretch, program.network / pace.stretch)
                for program, pace in zip(there, paces, strict=True)
            ]
        ).sum(axis=0)
        limits = (model.memory_bandwidth, model.disk_bandwidth, model.network_bandwidth)
        assert (moved <= np.array(limits) * 1.001).all(), f"seed {SEED}: {there}"


def test_programs_that_fit_the_cache_thrash_it_together() -> None:
    """One 8 MiB working set runs from a 15 MiB cache; six run twice as long or longer (Table 8.2)."""
    model = MACHINE_TYPES["M"]
    assert paces_together([MEM_FIT] * 6, model)[0].stretch > 2 * pace_alone(MEM_FIT, model).stretch
    assert paces_together([MEM_FIT] * 6, model)[0].misses > 0 == pace_alone(MEM_FIT, model).misses


def test_two_streams_on_a_disk_take_more_than_twice_as_long() -> None:
    """A disk is shared, and loses to seeking on top; computing programs are not disturbed."""
    model = MACHINE_TYPES["M"]
    slow = paces_together([IO_READ, IO_READ, CPU_SPIN], model)
    assert slow[0].stretch > 2 * pace_alone(IO_READ, model).stretch
    assert slow[2].stretch == pytest.approx(pace_alone(CPU_SPIN, model).stretch)


def test_the_second_thread_of_a_core_adds_little() -> None:
    """Six computing programs on six cores are undisturbed; twelve take 1.54 times as long."""
    model = MACHINE_TYPES["M"]
    assert paces_together([CPU_SPIN] * 6, model)[0].stretch == pace_alone(CPU_SPIN, model).stretch
    assert paces_together([CPU_SPIN] * 12, model)[0].stretch == pytest.approx(12 / (6 + 0.3 * 6))


def test_a_large_working_set_disturbs_a_small_one() -> None:
    """Who streams through memory pushes out who lives in the cache."""
    model = MACHINE_TYPES["A"]
    assert paces_together([MEM_FIT, MEM_BIG], model)[0].stretch > 1.1 * pace_alone(MEM_FIT, model).stretch


def test_type_a_has_the_fast_disks() -> None:
    """§8.2.1: alone, an io_stream runs best on a machine of type A."""
    assert min(SRG_CLUSTER, key=lambda name: pace_alone(IO_READ, MACHINE_TYPES[name]).stretch) == "A"


def test_a_program_takes_something() -> None:
    """A unit of work that takes nothing, or less, would end at once or never."""
    with pytest.raises(InvalidError, match="idler"):
        ProgramModel("idler", cpu=0.0)
    with pytest.raises(InvalidError, match="odd"):
        ProgramModel("odd", disk=-1.0)


# The cluster mix ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "tasks", "threads"), [("mix-srg", 130, 164), ("mix-dc", 268, 336)])
def test_the_mix_is_that_of_table_8_2(name: str, tasks: int, threads: int) -> None:
    """130 tasks on the SRG cluster (79.3 % of its threads), 268 on the model data centre (79.8 %)."""
    cluster, large = MIXES[name]
    events = list(MixWorkload(thesis_machines(cluster), SEED, large=large).events())
    assert sum(len(submission.tasks) for submission in submissions(events)) == tasks
    assert sum(event.machine.slots for event in events if isinstance(event, MachineUp)) == threads


def test_a_job_of_the_mix_comes_again() -> None:
    """Within ten seconds after its end, with as many tasks of the same program (§8.2.1)."""
    mix = MixWorkload(thesis_machines(SRG_CLUSTER), SEED, large=False)
    first = submissions(list(mix.events()))[0]
    again = mix.job_done(first.job.job, 100.0)
    assert again is not None
    assert 100 <= again.time <= 100 + RESUBMITTED_S
    assert [task.program for task in again.tasks] == [task.program for task in first.tasks]
    assert not {task.descriptor.task for task in again.tasks} & {task.descriptor.task for task in first.tasks}

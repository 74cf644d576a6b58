"""One server's link over time: guarantees of a task, and all rates together (Figures 7 and 8 of the paper).

As in the paper's experiment, the guarantee of an edge is constant, here its mean demand while it sends, and
jobs are admitted with these guarantees. The traffic that a task then tries to send varies around that. No
rates are enforced on real links.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from dios.packer.allocate import Placement, allocate
from dios.packer.job.ti_mra import Floats, TiMra
from dios.packer.policies import LITERAL
from dios.packer.share_bandwidth import share_bandwidth
from labs.papers.figures import Cell, Figure, FigureTable, PublishedClaim, median
from labs.papers.judgements import judged
from labs.papers.packer.runs import FAMILY, PAPER, PRESSURE, PackerRuns
from labs.plotting import Lines
from labs.simulate.packing.generate_jobs import Workload, generate_job
from labs.simulate.packing.simulate import JOBS_EACH

STEPS: Final = 10
"""The number of times per instant that shares are computed."""
BURST: Final = 0.7
"""The deviation of the logarithm of a task's traffic, relative to its job's demand."""
CLOSE: Final = 1e-6
"""Differences below this fraction of a link are rounding errors."""


class ServerLink(NamedTuple):
    """The n tasks that send from the busiest server over S steps."""

    seed: int
    server: int
    capacity: float
    names: tuple[str, ...]
    guarantees: Floats
    """(n, S) Mbit/s; 0 before a task starts and after it ends."""
    demands: Floats
    """(n, S) Mbit/s that the tasks try to send."""
    rates: Floats
    """(n, S) Mbit/s that the tasks get."""
    weights: Floats
    """(n,) weights of the tasks' jobs."""

    @property
    def floors(self) -> Floats:
        """(n, S) the guaranteed rates, below which no task may fall."""
        return np.minimum(self.guarantees, self.demands)

    @property
    def hungry(self) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """(n, S) True for a task that gets less than it demands."""
        return np.asarray(self.rates < self.demands - CLOSE * self.capacity)


@dataclass
class BusiestServers:
    """The busiest server of every seed, computed once."""

    runs: PackerRuns
    _links: list[ServerLink] = field(default_factory=list)

    def links(self) -> list[ServerLink]:
        """Return the link of every seed."""
        if not self._links:
            for seed in self.runs.seeds():
                self.runs.progress(f"seed {seed}: one server's link")
                self._links.append(busiest(self.runs, seed))
        return self._links

    def setting(self) -> tuple[tuple[str, str], ...]:
        """Return the parameters of the simulations."""
        places = ", ".join(f"server {link.server} (seed {link.seed})" for link in self.links())
        first = self.links()[0]
        return (
            *self.runs.setting(),
            ("server", f"the one whose tasks demand the most: {places}"),
            (
                "shares",
                f"computed {STEPS} times per instant, over {first.rates.shape[1] // STEPS} instants",
            ),
        )


def busiest(runs: PackerRuns, seed: int) -> ServerLink:
    """Admit jobs, for twice the time until the first have ended; return the server with the most demand."""
    datacenter = runs.make()
    begin = runs.begin
    end = 2 * begin
    workload = Workload(mbps=PRESSURE)
    per_instant = runs.scope.servers * JOBS_EACH
    held: list[tuple[Placement, TiMra]] = []
    wanted = np.zeros((runs.scope.servers, end))
    for instant in range(end):
        for number in range(int(instant * per_instant), int((instant + 1) * per_instant)):
            job = generate_job(workload, seed, number)
            placement = allocate(datacenter, constant(job), instant, policy=LITERAL)
            if placement:
                held.append((placement, job))
                for _, server, edges in _senders(placement):
                    flow = job.bandwidth[edges].sum(axis=0)[: end - instant]
                    wanted[server, instant : instant + len(flow)] += flow
    server = int(wanted[:, begin:].sum(axis=1).argmax())
    # The last instant of the horizon has no reservations.
    capacity = float(datacenter.free("up")[-1, server])
    return _follow_link(seed, server, capacity, held, (begin, end))


def constant(job: TiMra) -> TiMra:
    """Return the job with constant guarantees: each edge's mean bandwidth while it sends."""
    busy = np.maximum((job.bandwidth > 0.0).sum(axis=1, keepdims=True), 1)
    level = job.bandwidth.sum(axis=1, keepdims=True) / busy
    return job.with_arrays(job.demand, np.broadcast_to(level, job.bandwidth.shape))


def _senders(placement: Placement) -> list[tuple[int, int, list[int]]]:
    """Return each node that sends to other servers: node, server, and its edges to other servers."""
    place = [placement.servers[node.name] for node in placement.job.nodes]
    leaving: dict[int, list[int]] = {}
    for edge, (source, target) in enumerate(placement.job.ends.tolist()):
        if place[source] != place[target]:
            leaving.setdefault(source, []).append(edge)
    return [(node, place[node], edges) for node, edges in leaving.items()]


def _follow_link(
    seed: int, server: int, capacity: float, held: list[tuple[Placement, TiMra]], span: tuple[int, int]
) -> ServerLink:
    """Return the link of a server with guarantees, demands and rates of its tasks, step by step."""
    begin, end = span
    rng = np.random.default_rng([seed, server])
    steps = (end - begin) * STEPS
    names, weights, guarantees, demands = [], [], [], []
    for placement, job in held:
        for node, at, edges in _senders(placement):
            if at != server or placement.end <= begin:
                continue
            promise, wish = (
                _over_steps(flows[edges].sum(axis=0), placement.start - begin, steps)
                for flows in (placement.job.bandwidth, job.bandwidth)
            )
            # A burst lasts two steps.
            bursts = rng.lognormal(0.0, BURST, steps // 2).repeat(2)
            names.append(f"{job.name}, {job.nodes[node].name}")
            weights.append(job.weight)
            guarantees.append(promise)
            demands.append(wish * bursts)
    promised, wanted, weight = np.array(guarantees), np.array(demands), np.array(weights)
    rates = np.stack(
        [share_bandwidth(capacity, promised[:, step], wanted[:, step], weight) for step in range(steps)],
        axis=1,
    )
    return ServerLink(seed, server, capacity, tuple(names), promised, wanted, rates, weight)


def _over_steps(flow: Floats, start: int, steps: int) -> Floats:
    """Convert values by instants, from ``start`` on, to values by steps, from 0 on; 0 elsewhere."""
    row = np.zeros(steps)
    fine = flow.repeat(STEPS)[max(0, -start * STEPS) :]
    first = max(0, start * STEPS)
    fine = fine[: steps - first]
    row[first : first + len(fine)] = fine
    return row


def as_printed(capacity: float, guarantees: Floats, demands: Floats, weights: Floats) -> Floats:
    """Run Algorithm 2 as it is printed, in the order of its loops, until less than ``CLOSE`` is left."""
    rates = np.minimum(guarantees, demands)
    hungry = [at for at in range(rates.size) if guarantees[at] < demands[at]]
    left = capacity - float(rates.sum())
    while left > CLOSE * capacity and hungry:
        total = float(weights[hungry].sum())
        if total == 0.0:
            break
        for at in list(hungry):
            value = min(float(demands[at] - rates[at]), float(weights[at]) / total * left)
            rates[at] += value
            left -= value
            if rates[at] >= demands[at] - CLOSE * capacity:
                hungry.remove(at)
    return rates


def _moments(link: ServerLink) -> tuple[Cell, ...]:
    """Return the row of a link: the moments with an active task, and the tasks' rates in them."""
    there = link.guarantees > 0.0
    above = link.demands > link.guarantees
    below = (link.rates < link.floors - CLOSE * link.capacity)[there]
    more = (link.rates > link.guarantees + CLOSE * link.capacity)[there & above]
    return (
        *(link.seed, len(link.names), int(there.sum()), int(below.sum())),
        *(100 * float(above[there].mean()), 100 * float(more.mean()) if more.size else 0.0),
        100 * float(link.hungry[there].mean()),
    )


def figure_7(servers: BusiestServers) -> Figure:
    """Return Figure 7: a task's rate, guarantee and demand."""
    rows = [_moments(link) for link in servers.links()]
    columns = (
        *("seed", "tasks", "moments", "below min(demand, guarantee)"),
        *("demand above guarantee, %", "rate above guarantee in these, %", "hungry, %"),
    )
    below_all = sum(int(str(row[3])) for row in rows)
    first = servers.links()[0]
    at = _most_varied_task(first)
    steps = np.arange(first.rates.shape[1]) / STEPS
    return Figure(
        number="7",
        title="Figure 7: minimum bandwidth guarantees of a task",
        seed=servers.runs.seed,
        quick=servers.runs.scope.quick,
        setting=servers.setting(),
        sheets=(
            FigureTable("All tasks that send from the server; a moment is a step of a task", columns, rows),
        ),
        claims=(
            PublishedClaim(
                "section III-B, Figure 7",
                "the rate is never below the smaller of demand and guarantee",
                "never",
                f"{below_all} of {sum(int(str(row[2])) for row in rows):,} moments",
                judged(below_all, 0, 0, exact=True),
            ),
            PublishedClaim(
                "section III-B, Figure 7",
                "a task that demands more than its guarantee may get less than it demands",
                "sometimes",
                f"{median([float(row[6]) for row in rows]):.0f} % of moments in the median seed",
                judged([float(row[6]) for row in rows], 0, 100, none=0.0),
            ),
        ),
        pictures=(
            Lines(
                *("7", f"{first.names[at]} on server {first.server}, seed {first.seed}", "instant", "Mbit/s"),
                {
                    "demand": (steps, first.demands[at]),
                    "guarantee": (steps, first.guarantees[at]),
                    "rate": (steps, first.rates[at]),
                },
            ),
        ),
        notes=(*NOTES, _note_on_equal_tasks(servers)),
        family=FAMILY,
        source=PAPER,
        options=servers.runs.options,
    )


NOTES: Final = (
    "Rates are those of dios.packer.share_bandwidth; nothing is sent. Real links are measured elsewhere.",
    (
        "Jobs are admitted with constant guarantees: an edge's mean bandwidth while it sends. A task then "
        "tries to send its job's bandwidth, times a lognormal burst of two steps."
    ),
)


def _most_varied_task(link: ServerLink) -> int:
    """Return the task that is active for longest and is about as often above its guarantee as below."""
    there = (link.guarantees > 0.0).sum(axis=1)
    above = (link.demands > link.guarantees).sum(axis=1)
    below = ((link.demands < link.guarantees) & (link.demands > 0.0)).sum(axis=1)
    return int(np.argmax(np.minimum(above, below) + 1e-3 * there))


def _note_on_equal_tasks(servers: BusiestServers) -> str:
    """Return a note on Algorithm 2 as printed, which gives equal tasks unequal rates."""
    worst = 0.0
    for link in servers.links():
        for step in range(0, link.rates.shape[1], STEPS):
            there = link.guarantees[:, step] > 0.0
            columns = (link.guarantees[there, step], link.demands[there, step])
            printed = as_printed(link.capacity, *columns, link.weights[there])
            worst = max(worst, float(np.abs(printed - link.rates[there, step]).max(initial=0.0)))
    two = as_printed(10.0, np.ones(2), np.full(2, 9.0), np.ones(2)).round(2).tolist()
    return (
        "As printed, Algorithm 2 distributes the rest in the order of tasks: two equal tasks that share 10 "
        f"get {two}. On these links a task's rate would differ from its fair one by up to {worst:.0f} Mbit/s."
    )


def _steps(link: ServerLink) -> tuple[Cell, ...]:
    """Return the row of a link: its use with and without lending, and the steps with a broken promise."""
    total, wanted = link.rates.sum(axis=0), link.demands.sum(axis=0)
    room = total < link.capacity * (1 - CLOSE)
    idle = int((room & link.hungry.any(axis=0)).sum())
    over = int((total > link.capacity * (1 + CLOSE)).sum())
    parts = (total.mean(), link.floors.sum(axis=0).mean(), link.guarantees.sum(axis=0).max(), wanted.max())
    return (
        *(link.seed, *(100 * float(part) / link.capacity for part in parts)),
        *(int((~room).sum()), idle, over),
    )


def figure_8(servers: BusiestServers) -> Figure:
    """Return Figure 8: all rates of the link together."""
    rows = [_steps(link) for link in servers.links()]
    columns = (
        *("seed", "used, %", "used without lending, %", "largest guarantee, %", "largest demand, %"),
        *("steps with a full link", "spare while a task is hungry", "above the link"),
    )
    first = servers.links()[0]
    steps = np.arange(first.rates.shape[1]) / STEPS
    lent = [float(row[1]) - float(row[2]) for row in rows]
    return Figure(
        number="8",
        title="Figure 8: work-conserving sharing on a server",
        seed=servers.runs.seed,
        quick=servers.runs.scope.quick,
        setting=servers.setting(),
        sheets=(FigureTable("The server's link in each seed, means over steps", columns, rows),),
        claims=(
            PublishedClaim(
                "section III-B, Figure 8",
                "tasks get more than their guarantees when bandwidth is spare",
                "yes",
                f"{median(lent):+.0f} % of the link in the median seed",
                judged(lent, 0, 100, none=0.0),
            ),
            PublishedClaim(
                "section II-C",
                "nothing is left while a task is hungry",
                "never",
                f"{sum(int(str(row[6])) for row in rows)} of {len(rows) * len(steps):,} steps",
                judged(sum(int(str(row[6])) for row in rows), 0, 0, exact=True),
            ),
            PublishedClaim(
                "section III-B, footnote 1",
                "guarantees never exceed the link, although demands may",
                "never",
                f"at most {max(float(row[3]) for row in rows):.0f} % guaranteed, "
                f"{max(float(row[4]) for row in rows):.0f} % demanded",
                judged([float(row[3]) for row in rows], 0, 100 * (1 + CLOSE), every=True, exact=True),
            ),
        ),
        pictures=(
            Lines(
                *("8", f"Server {first.server}, seed {first.seed}", "instant", "Mbit/s"),
                {
                    "demands": (steps, first.demands.sum(axis=0)),
                    "guarantees": (steps, first.guarantees.sum(axis=0)),
                    "rates": (steps, first.rates.sum(axis=0)),
                    "link": (steps, np.full(len(steps), first.capacity)),
                },
            ),
        ),
        notes=NOTES,
        family=FAMILY,
        source=PAPER,
        options=servers.runs.options,
    )

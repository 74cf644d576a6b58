"""The types of a coordinator's answers, from which ``dios schema`` makes JSON schemas.

A field with the name of a Python keyword needs the other syntax for typed dictionaries.
"""

from __future__ import annotations

from typing import NotRequired, TypedDict

from dios.firmament.explain.explanation import Explanation


class DevicesAnswer(TypedDict):
    """The devices of one kind on a node: their number, and the names of those that tasks have now."""

    count: int
    taken: list[str]


class EnforcingNodeAnswer(TypedDict):
    """A node's rates, and by resource why it does not enforce needs of tasks, "" if it does."""

    node: str
    enforcement: dict[str, str]
    disk_io: int
    network: int


class NodeAnswer(EnforcingNodeAnswer):
    """A node: its capacity, the part reserved for tasks, and its measured use, null if unknown.

    ``cpus_outside`` are the processors in use by programs that are no tasks, as far as they count.
    """

    rack: str
    cpus: int
    memory_bytes: int
    devices: dict[str, DevicesAnswer]
    running: int
    cpus_set_aside: float
    memory_set_aside: int
    cpus_used: float | None
    cpus_outside: float
    memory_used: int | None
    watts: float | None
    draining: bool
    coordinator: bool


class RoundAnswer(TypedDict):
    """A round. Deltas are the kind, the task, and the machines before and after, -1 for none."""

    number: int
    now: float
    model: str
    algorithm: str
    deltas: list[tuple[str, int, int, int]]
    faults: list[str]
    stands: bool
    cost: int
    waiting: int
    running: int
    vertices: int
    arcs: int
    changes: int
    update_s: float
    solve_s: float
    total_s: float
    certified: bool
    kinds: dict[str, int]


class KernelsAnswer(TypedDict):
    """The state of the scheduler's kernels; the others come while they are being compiled."""

    state: str
    compiled: NotRequired[int]
    total: NotRequired[int]
    problem: NotRequired[str]


class WorthCopyAnswer(TypedDict):
    """A task that LATE would copy, and the seconds that are left of it."""

    task: str
    seconds_left: float


class ModelAnswer(TypedDict):
    """The name of the cost model."""

    model: str


class SchedulerAnswer(ModelAnswer):
    """The part of the status that depends on the scheduler."""

    rounds: int
    last_round: RoundAnswer | None
    placed_by: str
    kernels: KernelsAnswer
    worth_copies: list[WorthCopyAnswer]


class StatusAnswer(SchedulerAnswer):
    """The coordinator and its cluster; only the nodes' own user sees the problems."""

    coordinator: str
    set_up: str
    attends: list[str]
    nodes: list[NodeAnswer]
    waiting: int
    running: int
    problems: list[str]
    unmeasured: dict[str, str]


class EnforcementAnswer(TypedDict):
    """The nodes' enforcement; the model, and if it is an operator's own, on request."""

    nodes: list[EnforcingNodeAnswer]
    model: NotRequired[str]
    custom: NotRequired[bool]


class TaskExplained(TypedDict):
    """The explanation of a task by the scheduler; no ``explanation`` while the kernels are compiled."""

    lines: list[str]
    explanation: Explanation | None
    placed_by: NotRequired[str]
    kernels: NotRequired[KernelsAnswer]


class ExplainedAnswer(TaskExplained, ModelAnswer):
    """Why a task waits or runs where it does, and the needs that its node enforces, if it names any."""

    task: str
    label: str
    node: str
    phase: str
    caller: str
    moving: bool
    moves: int
    restarts: int
    kept_bytes: int
    enforced: NotRequired[list[str]]
    advisory: NotRequired[dict[str, str]]


class CatalogueModelAnswer(ModelAnswer):
    """A cost model, and the options of runs that it considers."""

    summary: str
    considers: list[str]


class ModelsAnswer(TypedDict):
    """The catalogue of cost models, and the one in use."""

    models: list[CatalogueModelAnswer]
    current: str


class ModelChangeAnswer(ModelAnswer):
    """The cost model from now on, and the one before."""

    before: str


SettingAnswer = TypedDict("SettingAnswer", {"setting": str, "value": str, "default": str, "from": str})


class SettingsAnswer(TypedDict):
    """The settings of the scheduler, and from where each value comes."""

    settings: list[SettingAnswer]


class HistoryAnswer(TypedDict):
    """The last rounds, the oldest first."""

    rounds: list[RoundAnswer]


class AccountAnswer(TypedDict):
    """A principal's terms and use; parts are of the whole cluster (``PrincipalAccount``)."""

    principal: str
    weight: float
    entitlement: float
    share: float
    resource: str
    commitment: float
    credit: float
    running: int
    quota: dict[str, float]


class SharingAnswer(AccountAnswer):
    """A principal, and the number of its tasks that wait.

    ``turn`` is its place in the order of principals with waiting tasks, 1 for the next; it is the next one in
    ``next_in_s`` if no task starts or ends. Both are null if nothing orders it, the second also for never.
    """

    waiting: int
    turn: int | None
    next_in_s: float | None


class RateAnswer(TypedDict):
    """A rate in force: the bytes per second that a principal may move at a node."""

    node: str
    traffic: str
    principal: str
    bytes_s: int


class RateSolutionAnswer(TypedDict):
    """The last division of links and stores: by exact shares ("edrf") or before a deadline ("dc-drf").

    ``epsilon`` is the fraction of a resource that DC-DRF may have left, and ``completed`` is false if its
    deadline came first. ``exact_s`` is the time of the last exact shares.
    """

    algorithm: str
    principals: int
    resources: int
    seconds: float
    epsilon: float
    completed: bool
    exact_s: float


class SharesAnswer(TypedDict):
    """The principals that the asking one may see, and the number of all."""

    fairness: str
    memory_s: float
    coordinator: str
    sharing: int
    principals: list[SharingAnswer]
    rates: list[RateAnswer]
    rates_by: RateSolutionAnswer | None
    """None if nothing had to be divided yet."""


class PromiseAnswer(TypedDict):
    """A waiting task for which machines are kept, and in how many seconds it is expected to start there.

    It starts when the tasks ``after`` of the caller have ended, and ``others`` tasks of other principals.
    """

    task: str
    nodes: list[str]
    starts_in_s: float
    after: list[str]
    others: int


class PromisesAnswer(TypedDict):
    """The promises to the caller's waiting tasks, the first start first."""

    promises: list[PromiseAnswer]


class QuotaAnswer(TypedDict):
    """The principal whose terms were set."""

    principals: list[AccountAnswer]


class PlacedMemberAnswer(TypedDict):
    """A member of a job over time: its node, its time in seconds after the admission, and its peaks.

    A service is a node whose store the job uses.
    """

    member: str
    node: str
    service: bool
    start_s: float
    end_s: float | None
    cpus: float
    memory_bytes: int


class AdmittedMemberAnswer(PlacedMemberAnswer):
    """A member of an admitted job, and True if its task runs."""

    running: bool


EdgeAnswer = TypedDict(
    "EdgeAnswer",
    {
        "from": str,
        "to": str,
        "node": str,
        "inside": bool,
        "guaranteed_bytes_s": int,
        "moving_bytes_s": float,
    },
)


class PlacedJobAnswer(TypedDict):
    """A job over time, and the places of its members; no length means as long as its tasks run.

    ``waits_s`` is the time until its start.
    """

    job: str
    length_s: float | None
    waits_s: float
    members: list[PlacedMemberAnswer]


class AdmittedJobAnswer(TypedDict):
    """An admitted job over time, its members, and its edges with guarantees and traffic."""

    number: int
    principal: str
    job: str
    length_s: float | None
    waits_s: float
    age_s: float
    problem: str
    members: list[AdmittedMemberAnswer]
    edges: list[EdgeAnswer]


class TimelineMemberAnswer(TypedDict):
    """A member of an admitted job and its demands, as changes: the time, processors, and bytes of memory."""

    member: str
    node: str
    running: bool
    steps: list[tuple[float, float, int]]


TimelineEdgeAnswer = TypedDict(
    "TimelineEdgeAnswer",
    {
        "from": str,
        "to": str,
        "source_node": str,
        "target_node": str,
        "moving_bytes_s": float,
        "steps": list[tuple[float, int]],
    },
)
"""An edge, its present traffic, and its guarantees as changes: the time, and bytes per second."""


class TimelineJobAnswer(TypedDict):
    """An admitted job in seconds since 1970; without an end it lasts as long as its tasks."""

    number: int
    principal: str
    job: str
    began_s: float
    ends_s: float | None
    problem: str
    members: list[TimelineMemberAnswer]
    edges: list[TimelineEdgeAnswer]


class TimelineNodeAnswer(TypedDict):
    """The capacity of a node."""

    node: str
    cpus: float
    memory_bytes: int


class PackTimelineAnswer(TypedDict):
    """The admitted jobs that the asking user may see; ``cut`` is true if later changes are left out."""

    now_s: float
    ruler: bool
    cut: bool
    nodes: list[TimelineNodeAnswer]
    jobs: list[TimelineJobAnswer]

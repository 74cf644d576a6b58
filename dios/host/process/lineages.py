"""Lineages: the processes that were forked from one executed zygote, and so share its secrets.

A fork has the memory layout, the stack guard and the secret of string hashes of its origin. So each principal
has zygotes of its own, and others for its gateways, which hold the keys of granted networks, and for each of
its environments, whose packages only their views have, and for its tasks in gVisor. A lineage that no task
uses is ended when there are more than IDLE_LINEAGES_MAX of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol

import trio
from msgspec import structs

from dios.host.process.prepared_tasks import PreparedTasks
from dios.host.process.task_process import ProcessLimits, TaskProcess
from dios.host.process.template_setting import TemplateSetting
from dios.host.process.templates import ProcessMaker, Templates
from dios.host.process.zygote_link import ZygoteLink
from dios.ids import Principal
from dios.wire.messages import TemplateRow
from dios.wire.types import Isolation

IDLE_LINEAGES_MAX: Final = 8
"""The most lineages without tasks that are kept. A zygote takes about 15 MiB."""

OWN: Final = ""
"""The lineage of the node's own user, whose zygote is started with the node."""

PUBLIC: Final = "public"
"""The lineage of the templates that the settings call public: their tasks share it, whoever they are for."""

_STATES: Final = ("loaded", "loading", "failed", "idle")
_PREPARED_MAX: Final = 1


_IN: Final = "\n"
"""Between the parts of a name; no principal has it."""


_GVISOR: Final = "gVisor "


def lineage_of(
    principal: Principal,
    own: Principal,
    *,
    is_gateway: bool,
    environment: str = "",
    isolation: Isolation = Isolation.KERNEL,
) -> str:
    """Return the name of the lineage from which a task of a principal starts.

    ``environment`` is the key of the environment in which it runs.
    """
    name = OWN if principal in {own, Principal("")} else f"of {principal}"
    name = f"gateways {name}" if is_gateway else name
    name = f"{_GVISOR}{name}" if isolation is Isolation.GVISOR else name
    return f"{name}{_IN}{environment}" if environment else name


def environment_of(lineage: str) -> str:
    """Return the key of the environment of a lineage; empty for none."""
    return lineage.rpartition(_IN)[2] if _IN in lineage else ""


def is_in_gvisor(lineage: str) -> bool:
    """Return True if the tasks of a lineage run in gVisor."""
    return lineage.startswith(_GVISOR)


class LineageMaker(Protocol):
    """The part of the pool that makes processes of lineages."""

    def may_prepare(self, lineage: str) -> bool:
        """Return True if processes of a lineage can wait for a task, and get lower limits with it."""
        ...

    async def make_prepared(self, lineage: str) -> TaskProcess:
        """Create a pure task with the default limits. Raise DiosError if that fails."""
        ...

    def maker_of(self, lineage: str) -> ProcessMaker:
        """Return the maker of the templates of a lineage."""
        ...

    def has_room(self) -> bool:
        """Return True while the node has fewer processes than it may have tasks."""
        ...


@dataclass(slots=True)
class Lineage:
    """The zygote of a lineage, the supervisor of its templates, and the processes that wait for a task."""

    name: str
    templates: Templates
    prepared: PreparedTasks
    zygote: ZygoteLink | None = None
    supervisor: ZygoteLink | None = None
    starting_zygote: trio.Lock = field(default_factory=trio.Lock)
    starting_supervisor: trio.Lock = field(default_factory=trio.Lock)
    starts: int = 0
    """The number of tasks that are being started."""

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Keep the lineage while the body starts a task."""
        self.starts += 1
        try:
            yield
        finally:
            self.starts -= 1

    @property
    def environment(self) -> str:
        """The key of the environment of its tasks; empty for none."""
        return environment_of(self.name)

    @property
    def is_in_gvisor(self) -> bool:
        """True if its tasks run in gVisor."""
        return is_in_gvisor(self.name)

    @property
    def is_idle(self) -> bool:
        """True while it has no task, and starts none."""
        own = 0 if self.zygote is None else len(self.zygote.children)
        others = 0 if self.supervisor is None else len(self.supervisor.children)
        return not self.starts and own <= len(self.prepared) and others <= self.templates.processes

    @property
    def is_starting(self) -> bool:
        """True while its zygote or its supervisor starts."""
        return self.starting_zygote.locked() or self.starting_supervisor.locked()

    @property
    def links(self) -> tuple[ZygoteLink, ...]:
        """The connections to its zygote and its supervisor."""
        return tuple(link for link in (self.zygote, self.supervisor) if link is not None)


class Lineages:
    """All lineages of a node, the one that was used last at the end."""

    def __init__(
        self,
        nursery: trio.Nursery,
        maker: LineageMaker,
        specs: Iterable[TemplateSetting],
        base: tuple[str, ...],
        warm_up: str,
        *,
        defaults: ProcessLimits,
        prepared_max: int,
    ) -> None:
        self._nursery: Final = nursery
        self._maker: Final = maker
        self._specs: Final = {spec.name: spec for spec in specs}
        self._base: Final = base
        self._warm_up: Final = warm_up
        self._defaults: Final = defaults
        self._prepared_max: Final = prepared_max
        self._lineages: dict[str, Lineage] = {}
        self.use(OWN)

    def use(self, name: str) -> Lineage:
        """Return a lineage, and note that it is used."""
        lineage = self._lineages.pop(name, None) or self._new(name)
        self._lineages[name] = lineage
        return lineage

    def use_for(self, template: str, name: str) -> Lineage:
        """Return the lineage from which tasks of a template start, and note that it is used."""
        spec = self._specs.get(template)
        return self.use(PUBLIC if spec is not None and spec.is_public else name)

    def _new(self, name: str) -> Lineage:
        templates = Templates(
            self._specs.values(),
            self._nursery,
            self._maker.maker_of(name),
            self._base,
            warm_up=self._warm_up,
            defaults=self._defaults,
            prepared_max=self._prepared_max,
        )

        def make(_forkable: bool) -> Awaitable[TaskProcess]:  # noqa: FBT001 - the kind of the process
            return self._maker.make_prepared(name)

        # The pool of the node's own user is filled before a task asks for it.
        most = min(_PREPARED_MAX, self._prepared_max) if self._maker.may_prepare(name) else 0
        return Lineage(name, templates, PreparedTasks(self._nursery, most, make, self._maker.has_room))

    @property
    def all(self) -> tuple[Lineage, ...]:
        """All lineages."""
        return tuple(self._lineages.values())

    def take_superfluous(self) -> list[Lineage]:
        """Remove and return idle lineages beyond IDLE_LINEAGES_MAX, those that were used least recently."""
        idle = [lineage for lineage in self.all if lineage.name != OWN and lineage.is_idle]
        return self._take(idle[: max(0, len(idle) - IDLE_LINEAGES_MAX)])

    def take_idle_in(self, environment: str) -> list[Lineage] | None:
        """Remove and return the lineages of an environment. Return None if one has a task or starts one."""
        return None if self.any_task_in(environment) else self._take(self._in(environment))

    def any_task_in(self, environment: str) -> bool:
        """Return True while a task runs in an environment, or starts there."""
        return any(lineage.is_starting or not lineage.is_idle for lineage in self._in(environment))

    def _in(self, environment: str) -> list[Lineage]:
        return [lineage for lineage in self.all if lineage.environment == environment]

    def _take(self, lineages: list[Lineage]) -> list[Lineage]:
        for lineage in lineages:
            del self._lineages[lineage.name]
            lineage.prepared.close()
            lineage.templates.close()
        return lineages

    def ended(self, child: TaskProcess) -> None:
        """Note the end of a process, which may be a prepared one."""
        for lineage in self.all:
            lineage.prepared.ended(child)
            lineage.templates.ended(child)

    def close(self) -> None:
        """End all processes that wait for a task."""
        for lineage in self.all:
            lineage.prepared.close()
            lineage.templates.close()

    def template_rows(self) -> tuple[TemplateRow, ...]:
        """Describe each template once, with the numbers of all lineages together."""
        rows: dict[str, TemplateRow] = {}
        for lineage in self.all:
            for row in lineage.templates.rows():
                rows[row.name] = _joined(rows[row.name], row) if row.name in rows else row
        return tuple(rows.values())


def _joined(first: TemplateRow, second: TemplateRow) -> TemplateRow:
    row = min(first, second, key=lambda candidate: _STATES.index(candidate.state))
    return structs.replace(
        row,
        used_bytes=first.used_bytes + second.used_bytes,
        load_ms=max(first.load_ms, second.load_ms),
        starts=first.starts + second.starts,
        tasks=first.tasks + second.tasks,
        prepared=first.prepared + second.prepared,
    )

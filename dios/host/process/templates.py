"""The templates of a node in the daemon: each is started at its first use, and again after it has ended.

``dios.host.process.template_supervisor`` is the other side, in a process of its own.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

import trio

from dios import limits
from dios.errors import DiosError, NotSupportedError, OutOfMemoryError
from dios.host.confinement import limits_of_task
from dios.host.process.prepared_tasks import PreparedTasks
from dios.host.process.task_process import ProcessLimits, TaskProcess
from dios.host.process.template_setting import TemplateSetting
from dios.host.process.zygote_link import ZygoteLink
from dios.start_watch import LOOK_S, StartWatch
from dios.wire.messages import TemplateRow
from dios.wire.types import Cause

_log: Final = logging.getLogger(__name__)

FORK_S_MAX: Final = 20.0
"""The time in which a template must fork a session; it is ended if it does not."""

UNNAMED: Final = ""
"""The template of sessions that can be forked and name none."""

TASK_BYTES: Final = 2 * limits.MIB
"""The memory of a task that counts as its template's: its namespaces, and pages as they were when it was
forked, which the template has changed since. About 1.2 MB were measured."""

_TASKS_AT_ONCE: Final = 64
"""The limit of a template is raised for this number of tasks."""

BACK_OFF_S: Final = 1.0
BACK_OFF_S_MAX: Final = 60.0
_PROCESSES: Final = 256


class ProcessMaker(Protocol):
    """The part of the pool that makes processes."""

    async def template_link(self) -> ZygoteLink:
        """Return the connection to the supervisor of templates. Raise DiosError if it cannot be started."""

    async def counted(self, child: TaskProcess) -> TaskProcess:
        """Put a new child into a control group, and watch it. Raise DiosError."""

    async def lowered(self, link: ZygoteLink, child: TaskProcess, bounds: ProcessLimits) -> bool:
        """Lower the limits of a child that waits. Return False, and end it, if they cannot be lowered."""

    def has_room(self) -> bool:
        """Return True while the node has fewer processes than it may have tasks."""


@dataclass(slots=True)
class _Template:
    """A template: its process while it runs, and what its users wait for while it starts."""

    spec: TemplateSetting
    prepared: PreparedTasks
    process: TaskProcess | None = None
    link: ZygoteLink | None = None
    starting: trio.Event | None = None
    failure: DiosError | None = None
    failures: int = 0
    retry_at: float = 0.0
    load_ms: int = 0
    started: int = 0
    sessions: int = 0
    tasks: set[TaskProcess] = field(default_factory=set)
    room: int = 0
    """The number of tasks that the memory limit of the process has room for, in addition to the process."""

    @property
    def running(self) -> TaskProcess | None:
        """The process, if it has loaded its modules and has not ended."""
        process = self.process
        return process if process is not None and process.exit is None and self.starting is None else None


class Templates:
    """All templates that the settings name. Each loads the modules ``base`` before its own."""

    def __init__(
        self,
        specs: Iterable[TemplateSetting],
        nursery: trio.Nursery,
        maker: ProcessMaker,
        base: tuple[str, ...] = (),
        *,
        warm_up: str = "",
        defaults: ProcessLimits,
        prepared_max: int = 0,
    ) -> None:
        self._base: Final = base
        self._warm_up: Final = warm_up
        self._nursery: Final = nursery
        self._maker: Final = maker
        self._defaults: Final = defaults
        self._prepared_max: Final = prepared_max
        # The one without a name has no modules of its own: sessions that can be forked start from it.
        every = (TemplateSetting(UNNAMED, ()), *specs)
        self._templates: Final = {spec.name: _Template(spec, self._prepared(spec.name)) for spec in every}

    async def prepare(self, name: str) -> None:
        """Wait until a template runs; start it if it does not.

        Raise NotSupportedError if this node has no such template, or it cannot be started; after a failure
        the next start waits for a time that doubles.
        """
        template = self._find(name)
        while template.running is None:
            if template.starting is None:
                if template.failure is not None and trio.current_time() < template.retry_at:
                    raise template.failure
                template.starting = trio.Event()
                self._nursery.start_soon(self._start, template, name=f"start the template {name}")
            await template.starting.wait()
            if template.failure is not None:
                raise template.failure

    def take(self, name: str) -> TaskProcess | None:
        """Return a prepared task of a running template, with the default limits, or None."""
        template = self._templates.get(name)
        if template is None or template.running is None or template.link is None or not template.link.alive:
            return None
        child = template.prepared.take(forkable=False)
        if child is not None:
            template.sessions += 1
        return child

    async def fork(self, name: str, bounds: ProcessLimits, *, forkable: bool = False) -> TaskProcess:
        """Return a prepared task of a running template, or fork one. Raise DiosError if that fails."""
        template = self._find(name)
        if template.running is not None and not bounds.exceed(self._defaults):
            child = template.prepared.take(forkable=forkable)
            while child is not None:
                link = template.link
                if link is not None and await self._maker.lowered(link, child, bounds):
                    template.sessions += 1
                    return child
                child = template.prepared.take(forkable=forkable)
        child = await self._maker.counted(await self._forked(template, bounds, forkable=forkable))
        template.sessions += 1
        return child

    def ended(self, child: TaskProcess) -> None:
        """Note the end of a process, which may be a prepared task."""
        for template in self._templates.values():
            template.tasks.discard(child)
            template.prepared.ended(child)

    @property
    def processes(self) -> int:
        """The number of processes that are no task: those of templates, and those that wait for a task."""
        alive = [t for t in self._templates.values() if t.process is not None and t.process.exit is None]
        return len(alive) + sum(len(template.prepared) for template in self._templates.values())

    def close(self) -> None:
        """End all prepared tasks."""
        for template in self._templates.values():
            template.prepared.close()

    def _prepared(self, name: str) -> PreparedTasks:
        async def make(forkable: bool) -> TaskProcess:  # noqa: FBT001 - the kind of the process
            template = self._find(name)
            return await self._maker.counted(await self._forked(template, self._defaults, forkable=forkable))

        return PreparedTasks(self._nursery, self._prepared_max, make, self._maker.has_room)

    async def _forked(self, template: _Template, bounds: ProcessLimits, *, forkable: bool) -> TaskProcess:
        name = template.spec.name
        process, link = template.running, template.link
        if process is None or link is None:
            raise OutOfMemoryError(f"the template {name!r} has just ended; try again", call="run")
        _make_room(template, process)
        try:
            with trio.fail_after(FORK_S_MAX):
                child = await link.make(bounds, process, forkable=forkable)
                template.tasks.add(child)
                return child
        except trio.TooSlowError:
            process.kill()
            raise OutOfMemoryError(
                f"the template {name!r} did not start the task within {FORK_S_MAX:.0f} s, so it was ended; "
                "try again",
                call="run",
            ) from None

    def rows(self) -> tuple[TemplateRow, ...]:
        """Describe all templates."""
        return tuple(_row(template) for name, template in self._templates.items() if name)

    def _find(self, name: str) -> _Template:
        template = self._templates.get(name)
        if template is None:
            known = ", ".join(sorted(filter(None, self._templates))) or "none"
            raise NotSupportedError(
                f"this node has no template {name!r} (its templates: {known}). Its settings name templates: "
                f'[templates.{name}] with modules = ["..."] in node.toml',
                call="run",
            )
        return template

    async def _start(self, template: _Template) -> None:
        began = time.monotonic()
        try:
            failure = await self._try_to_start(template)
        except Exception as error:  # noqa: BLE001 - an internal error costs the users of this template alone
            _log.error("an internal error kept a template from starting", exc_info=error)
            failure = NotSupportedError("an internal error; see the node's log", call="run")
        name = template.spec.name
        if failure is None:
            template.failure, template.failures = None, 0
            template.load_ms = round(1000 * (time.monotonic() - began))
            template.started += 1
            self._nursery.start_soon(_close_at_end, template, name="wait for the end of a template")
            _log.info("a template was loaded", extra={"template": name, "ms": template.load_ms})
        else:
            template.failures += 1
            wait_s = min(BACK_OFF_S * 2 ** min(template.failures - 1, 16), BACK_OFF_S_MAX)
            template.retry_at = trio.current_time() + wait_s
            subject = f"the template {name!r}" if name else "the template of sessions that can fork"
            template.failure = NotSupportedError(f"{subject} cannot be loaded: {failure.message}", call="run")
            if template.process is not None:
                template.process.close()
            _log.warning("a template cannot be loaded", extra={"template": name, "why": failure.message})
        event, template.starting = template.starting, None
        if event is not None:
            event.set()

    async def _try_to_start(self, template: _Template) -> DiosError | None:
        spec = template.spec
        try:
            template.link = link = await self._maker.template_link()
            bounds = ProcessLimits(spec.memory_bytes, 0, _PROCESSES)
            template.process = process = await link.make_template(bounds)
            template.room = 0
            await self._maker.counted(process)
            with self._until_it_hangs(process.pid) as scope:
                reason = await link.load(process, (*self._base, *spec.modules), self._warm_up)
            if scope.cancelled_caught:
                return NotSupportedError("it hung while it loaded its modules")
        except DiosError as error:
            return error
        if reason:
            with trio.move_on_after(limits.ZYGOTE_STOP_MS_MAX / 1000):
                end = await process.wait()
                # The end explains more than the template could, if it was ended by a limit or a system call.
                if end.signal and end.detail and end.cause is not Cause.KILLED:
                    reason = f"{reason} ({end.detail})"
            return NotSupportedError(reason)
        return None

    @contextlib.contextmanager
    def _until_it_hangs(self, pid: int) -> Iterator[trio.CancelScope]:
        """Cancel the body if the process hangs; large modules load for long on a busy machine."""
        watching = trio.CancelScope()
        with trio.CancelScope() as scope:
            self._nursery.start_soon(_watch, pid, scope, watching, name="watch a template that loads")
            try:
                yield scope
            finally:
                watching.cancel()


async def _watch(pid: int, scope: trio.CancelScope, watching: trio.CancelScope) -> None:
    """Cancel ``scope`` if a process hangs, until ``watching`` is cancelled."""
    watch = StartWatch(pid)
    with watching:
        hangs = False
        while not hangs:
            await trio.sleep(LOOK_S)
            hangs = await trio.to_thread.run_sync(watch.hangs)
        scope.cancel()


def _make_room(template: _Template, process: TaskProcess) -> None:
    """Raise the memory limit of a template's control group for one more task that lives with it."""
    if len(template.tasks) < template.room or process.group is None:
        return
    template.room = len(template.tasks) + _TASKS_AT_ONCE
    # A group that is gone ends with the process, which others report.
    with contextlib.suppress(OSError):
        process.group.limit(memory_bytes=template.spec.memory_bytes + template.room * TASK_BYTES, processes=0)


async def _close_at_end(template: _Template) -> None:
    """Wait for the end of a template's process, close its descriptors, and end its prepared tasks."""
    process = template.process
    if process is not None:
        try:
            await process.wait()
        finally:
            process.close()
            template.prepared.clear()


def _row(template: _Template) -> TemplateRow:
    running = template.running
    state = "loaded" if running is not None else "loading" if template.starting is not None else "idle"
    why = ""
    if state == "idle" and template.failure is not None:
        state, why = "failed", template.failure.message
    used = 0
    if running is not None:
        try:
            used = limits_of_task.used_bytes(running.pid)
        except OSError:
            used = 0  # this machine hides processes
    return TemplateRow(
        template.spec.name,
        template.spec.modules,
        state,
        template.spec.memory_bytes,
        used,
        template.load_ms,
        template.started,
        template.sessions,
        why,
        len(template.prepared),
    )

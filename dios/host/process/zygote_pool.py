"""Starts tasks from a pool of pure children that are already locked down, forked from zygote processes.

Zygotes of pure tasks are behind the read-only view: one for each lineage (``lineages``), of which that of the
node's own user has the pool. Another one serves limbo tasks; it is started with the first limbo task.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
from collections import deque
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Final

import trio
from msgspec import structs

from dios import limits
from dios.core.effects import TaskShare
from dios.errors import DiosError, InvalidError, NotSupportedError, OutOfMemoryError
from dios.host.confinement import limits_of_task
from dios.host.confinement.cgroups import ControlGroup, ControlGroups, GroupShare, open_control_groups
from dios.host.confinement.enforcement import enforcement
from dios.host.confinement.mechanisms import (
    Availability,
    Mechanism,
    fitness_of,
    not_confined,
    probe,
    require_pure,
)
from dios.host.confinement.native_programs import NativeProgram, ProgramSetting, examine
from dios.host.confinement.notifications import FORKS
from dios.host.containers.runtimes import (
    GVISOR,
    NO_RUNTIME,
    find_gvisor,
    known_runtimes,
    setup_for,
)
from dios.host.environments.store import EnvironmentStore
from dios.host.handover.format import Zygote
from dios.host.process.failure_pause import FailurePause
from dios.host.process.lineages import OWN, Lineage, Lineages, environment_of, is_in_gvisor
from dios.host.process.task_process import ProcessLimits, TaskProcess
from dios.host.process.template_setting import TemplateSetting
from dios.host.process.templates import ProcessMaker, Templates
from dios.host.process.zygote_link import ZygoteLink
from dios.host.process.zygote_messages import ZygoteModules, ZygoteSetup
from dios.host.process.zygote_process import StartedZygote
from dios.wire.images import ImageSettings
from dios.wire.messages import Limits
from dios.wire.types import Brand, Fitness

_log: Final = logging.getLogger(__name__)

NO_LIMITS: Final = Limits()
_OWN_DEFAULTS: Final = ProcessLimits(limits.TASK_MEMORY_BYTES_DEFAULT, 0, limits.TASK_PROCESSES_DEFAULT)
_REMOVAL_PAUSE_S: Final = 0.05
_REMOVALS_MAX: Final = 6
_NO_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC})
_COUNTED: Final = frozenset({"cgroup_memory", "cgroup_pids"})
"""Mechanisms that the node's control groups decide, and not an attempt to make some."""
_group_numbers: Final = itertools.count(1)
_nodes: Final = itertools.count(1)


@asynccontextmanager
async def open_zygote(
    *,
    entry: str,
    preload: tuple[str, ...] = (),
    paths: tuple[str, ...] = (),
    pool_size: int = limits.TASK_POOL_SIZE_DEFAULT,
    mechanisms: Mapping[str, Mechanism] | None = None,
    accept_weaker: bool = False,
    defaults: Limits = NO_LIMITS,
    started: StartedZygote | None = None,
    templates: Iterable[TemplateSetting] = (),
    base_of_templates: tuple[str, ...] = (),
    warm_up_of_templates: str = "",
    warm_up: str = "",
    programs: Iterable[ProgramSetting] = (),
    processes_max: int = limits.TASKS_MAX,
    continuations: int = 0,
    environments: EnvironmentStore | None = None,
    container_runtime: str = NO_RUNTIME,
    gvisor_runtime: str = GVISOR,
) -> AsyncIterator[ZygotePool]:
    """Start the zygote for tasks; leaving the block ends every task (§4.10.3, Table 4.7).

    ``entry`` is ``module:function``. Each child calls it after lock-down, with the DIOS socket as descriptor
    3; its return value is the exit code. ``preload`` names modules to import in advance and ``paths``
    directories to import from; pure tasks can read both. ``mechanisms`` is the result of ``probe``, which is
    called if this is None. If needed mechanisms are missing, pure tasks are refused unless
    ``accept_weaker``. ``defaults`` are the limits of a task that asks for none, and of the children in the
    pool; a task that needs higher limits starts more slowly. ``started`` is the process of a zygote for pure
    tasks that was started early with the same ``entry``, ``preload`` and ``paths``. Enter the block on the
    thread that the daemon uses until its end: zygotes end with that thread. ``templates`` are loaded at their
    first use, each with the modules ``base_of_templates`` before its own, and then call the function
    ``warm_up_of_templates`` (``module:function``), as zygotes call ``warm_up``. A template in use has a pool
    of ``pool_size`` children, too, unless there are ``processes_max`` processes. ``programs`` are native
    programs that pure tasks may become, on a machine that has all mechanisms for pure tasks.
    ``continuations`` is the number of predecessors of this process's program; the groups of their tasks have
    other names. ``environments`` are the sets of packages, and the images, in which pure tasks can start.
    ``container_runtime`` is the setting for the OCI runtime of images, ``gvisor_runtime`` that for gVisor.

    Raise ``NotSupportedError`` with the reason if the zygote cannot be set up, ``InvalidError`` for too many
    modules in ``preload``, and for a program that cannot be run.
    """
    if len(preload) > limits.PRELOAD_MODULES_MAX:
        raise InvalidError(
            f"cannot preload {len(preload)} modules: at most {limits.PRELOAD_MODULES_MAX} are allowed"
        )
    if mechanisms is None:
        mechanisms = await trio.to_thread.run_sync(probe)
    fitness = fitness_of(mechanisms, accept_weaker=accept_weaker)
    wanted = any(mechanisms[name].availability is not Availability.MISSING for name in _COUNTED)
    *former, name = (f"dios-{os.getpid()}-{next(_nodes)}" for _ in range(continuations + 1))
    groups = open_control_groups(name, former=former) if wanted else ControlGroups([])
    modules = ZygoteModules(entry, preload, paths, warm_up)
    setup = await _setup(mechanisms, groups, programs)
    try:
        # Before the nursery, so that an error reaches the caller directly and not in an exception group.
        link = await ZygoteLink.start(setup, modules, started) if fitness is Fitness.FIT else None
        async with trio.open_nursery() as nursery:
            zygote = ZygotePool(
                nursery,
                modules,
                setup,
                mechanisms,
                groups,
                pool_size,
                _bounds(defaults, _OWN_DEFAULTS),
                accept_weaker=accept_weaker,
                templates=templates,
                base_of_templates=base_of_templates,
                warm_up_of_templates=warm_up_of_templates,
                processes_max=processes_max,
                programs=programs,
                environments=environments,
                container_runtime=container_runtime,
                gvisor_runtime=gvisor_runtime,
                started=None if link is not None else started,
            )
            try:
                if link is not None:
                    zygote.serve_pure(link)
                yield zygote
            finally:
                with trio.CancelScope(shield=True):
                    await zygote.aclose()
                nursery.cancel_scope.cancel()
    finally:
        groups.close()


async def _setup(
    mechanisms: Mapping[str, Mechanism], groups: ControlGroups, programs: Iterable[ProgramSetting]
) -> ZygoteSetup:
    """Return the order for a zygote for pure tasks on a machine with these mechanisms and control groups."""
    available = {name for name, mechanism in mechanisms.items() if mechanism.available} - _COUNTED
    available |= {f"cgroup_{name}" for name in groups.controllers}
    return ZygoteSetup(Brand.PURE, tuple(sorted(available)), programs=await _examined(programs, mechanisms))


async def _examined(
    programs: Iterable[ProgramSetting], mechanisms: Mapping[str, Mechanism]
) -> tuple[NativeProgram, ...]:
    """Return the native programs with their files; none where a layer of the sandbox is missing."""
    wanted = tuple(programs)
    fitness = fitness_of(mechanisms)
    if wanted and fitness is Fitness.UNFIT:
        _log.warning("native programs are refused", extra={"why": not_confined(mechanisms)})
    if fitness is not Fitness.FIT:
        return ()
    return tuple(await trio.to_thread.run_sync(lambda: [examine(program) for program in wanted]))


class ZygotePool:
    """The starter of tasks that ``open_zygote`` returns."""

    def __init__(
        self,
        nursery: trio.Nursery,
        modules: ZygoteModules,
        setup: ZygoteSetup,
        mechanisms: Mapping[str, Mechanism],
        groups: ControlGroups,
        pool_size: int,
        defaults: ProcessLimits,
        *,
        accept_weaker: bool,
        templates: Iterable[TemplateSetting] = (),
        base_of_templates: tuple[str, ...] = (),
        warm_up_of_templates: str = "",
        processes_max: int = limits.TASKS_MAX,
        programs: Iterable[ProgramSetting] = (),
        environments: EnvironmentStore | None = None,
        started: StartedZygote | None = None,
        container_runtime: str = NO_RUNTIME,
        gvisor_runtime: str = GVISOR,
    ) -> None:
        self._nursery = nursery
        self._environments: Final = environments
        self._programs = tuple(programs)
        self._container_runtime: Final = container_runtime
        self._gvisor_runtime: Final = gvisor_runtime
        self._started = started
        """The process of a zygote that waits until this machine is known to be fit."""
        self.fitness = fitness_of(mechanisms, accept_weaker=accept_weaker)
        self._fitness_changed = trio.Event()
        self._processes_max = processes_max
        self._modules = modules
        self._setup = setup
        self._mechanisms = mechanisms
        self._groups = groups
        self._defaults = defaults
        self._accept_weaker = accept_weaker
        self._pool_size = pool_size
        self._pool: deque[TaskProcess] = deque()
        self._pause: Final = FailurePause()
        self._is_closing = False
        self._paused = False
        self._making = 0
        self._former_ended = trio.Event()
        self._is_removing = False
        self._refill = trio.Event()
        self._filled = trio.Event()
        self._starting_limbo = trio.Lock()
        self._limbo: ZygoteLink | None = None
        self._former: list[ZygoteLink] = []
        """The zygotes of predecessors: each lives as long as its children, and makes no others."""
        self._alive: set[TaskProcess] = set()
        self.lineages: Final = Lineages(
            nursery,
            self,
            templates,
            base_of_templates,
            warm_up_of_templates,
            defaults=defaults,
            prepared_max=pool_size,
        )
        self._own: Final = self.lineages.use(OWN)
        if environments is not None:
            environments.end_idle = self._end_idle_in
            environments.has_task = self._any_task_in

    async def learn(self, mechanisms: Mapping[str, Mechanism]) -> None:
        """Use what is known of the machine now; start the zygote for pure tasks if the machine is fit.

        Raise ``DiosError`` if the zygote does not start; the fitness is that of before then.
        """
        fitness = fitness_of(mechanisms, accept_weaker=self._accept_weaker)
        if fitness is Fitness.FIT:
            self._setup = await _setup(mechanisms, self._groups, self._programs)
        if fitness is Fitness.FIT and self._own.zygote is None:
            started, self._started = self._started, None
            self.serve_pure(await ZygoteLink.start(self._setup, self._modules, started))
        self._mechanisms, self.fitness = mechanisms, fitness
        self._fitness_changed.set()
        self._fitness_changed = trio.Event()

    async def wait_fit(self) -> None:
        """Wait until it is known if this machine is fit for pure tasks.

        Raise ``NotSupportedError`` with the reason if it is not.
        """
        while self.fitness is Fitness.UNKNOWN:
            await self._fitness_changed.wait()
        if self.fitness is Fitness.UNFIT:
            raise NotSupportedError(not_confined(self._mechanisms), call="run")

    def serve_pure(self, link: ZygoteLink) -> None:
        """Use this zygote for pure tasks and start to fill the pool."""
        self._own.zygote = link
        self._serve_link(link)
        if self._pool_size:
            self._nursery.start_soon(self._keep_filled)
        if "cgroup_memory" not in self._setup.available:
            self._nursery.start_soon(self._watch_memory, name="watch the memory of tasks")

    @property
    def ready(self) -> int:
        """The number of pure children that wait in the pool."""
        return len(self._pool)

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the zygotes."""
        return tuple(link.pid for link in self._all_links())

    @property
    def templates(self) -> Templates:
        """The templates of the node's own user."""
        return self._own.templates

    def _all_links(self) -> tuple[ZygoteLink, ...]:
        others = [link for lineage in self.lineages.all for link in lineage.links if lineage is not self._own]
        limbo = () if self._limbo is None else (self._limbo,)
        return (*self._own.links[:1], *limbo, *self._former, *others, *self._own.links[1:])

    # -- the successor of this process -----------------------------------------------------------------
    def pause(self) -> None:
        """Make no process in advance any more, until ``unpause``."""
        self._paused = True

    def unpause(self) -> None:
        """Fill the pool again."""
        self._paused = False
        self._refill.set()

    @property
    def busy(self) -> bool:
        """True while a process is being made."""
        links = self._all_links()
        starting = self._starting_limbo.locked() or any(user.is_starting for user in self.lineages.all)
        return starting or self._making > 0 or any(link.busy for link in links)

    def hand_over(self) -> tuple[Zygote, ...]:
        """Describe the zygotes with their children for the successor of this process."""
        return tuple(link.hand_over() for link in self._all_links() if link.alive)

    def take_over(self, zygotes: Iterable[Zygote], tasks: Collection[tuple[int, int]]) -> list[ZygoteLink]:
        """Continue with the zygotes of the predecessor. ``tasks`` are the places and numbers of its tasks.

        New tasks come from new zygotes, which have the present program. Processes without a task are ended.
        """
        taken = [ZygoteLink.taken_over(zygote) for zygote in zygotes]
        for place, link in enumerate(taken):
            self._former.append(link)
            link.on_end = self._on_end
            for number, child in link.children.items():
                self._alive.add(child)
                self._start_time_watch(child)
                if (place, number) not in tasks:
                    child.close()
            self._nursery.start_soon(self._serve_former, link, name="serve a former zygote")
        return taken

    async def _serve_former(self, link: ZygoteLink) -> None:
        """Serve a zygote of a predecessor until its last child has ended."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            while link.alive and link.children:
                self._former_ended = trio.Event()
                await self._former_ended.wait()
            nursery.cancel_scope.cancel()
        self._former.remove(link)
        await link.close()

    async def wait_pool_full(self) -> None:
        """Wait until the pool is filled, or filling it failed too often."""
        if self._pool_size and self.fitness is Fitness.FIT:
            await self._filled.wait()

    @contextmanager
    def using(self, lineage: str, template: str = "") -> Iterator[Lineage]:
        """Keep the lineage from which a task is being started, until the body ends."""
        user = self.lineages.use_for(template, lineage)
        try:
            with user.starting():
                yield user
        finally:
            self._end_superfluous()

    async def prepare(self, template: str, lineage: str = OWN, *, forkable: bool = False) -> None:
        """Wait until the origin of a pure task runs, which may take seconds: its zygote, or its template.

        A template is confined like a task before it loads the first module, so a machine that lacks a
        mechanism has none, even if it accepts a weaker sandbox for its tasks. Raise ``DiosError`` with the
        reason if the origin does not start, ``NotSupportedError`` if this machine has none.
        """
        with self.using(lineage, template) as user:
            if template or forkable:
                await self._prepare_template(template, user)
            else:
                await self._link(Brand.PURE, user)

    async def _prepare_template(self, template: str, lineage: Lineage) -> None:
        require_pure(self._mechanisms)
        await lineage.templates.prepare(template)

    def require_forkable(self) -> None:
        """Raise ``NotSupportedError`` with the reason if sessions cannot be forked on this machine."""
        require_pure(self._mechanisms)
        mechanism = self._mechanisms.get(FORKS)
        if mechanism is None or not mechanism.available:
            why = "it was not tried" if mechanism is None else mechanism.detail
            raise NotSupportedError(
                f"sessions cannot be forked on this machine ({why}): leave out forkable=True", call="run"
            )

    async def fork(self, task_limits: Limits, session: TaskProcess) -> TaskProcess:
        """Wait until a session that can be forked has forked itself.

        The fork has the limits of the session, or lower ones. It is in the control group of the session until
        it is in its own, so it need not wait for that. Raise ``DiosError`` with the reason if there is none.
        """
        link = next((link for link in self._all_links() if link.has(session)), None)
        if link is None or not link.alive:
            raise OutOfMemoryError("cannot fork the session: it has ended", call="run")
        child = await link.fork(_bounds(task_limits, self._defaults), session)
        self._alive.add(child)
        if child.exit is not None:
            self._on_end(child)
        elif self._groups:
            self._nursery.start_soon(self._count_fork, child, name="count the memory of a fork")
        return child

    async def _count_fork(self, child: TaskProcess) -> None:
        """Put a fork into a control group of its own; end it if that fails."""
        with trio.CancelScope(shield=True):
            try:
                await trio.to_thread.run_sync(self._enter_group, child)
            except DiosError as error:
                _log.error("a fork was ended, because it has no control group", extra={"why": error.message})
                child.kill()
        if child.exit is not None and child.group is not None:
            # Its end may have come before the group.
            self._dispose(child.group)

    def take(
        self, brand: Brand, task_limits: Limits, template: str = "", lineage: str = OWN
    ) -> TaskProcess | None:
        """Return a child that waits and has exactly these limits, or None: then ``spawn`` starts one.

        Raise ``InvalidError`` for a limit out of range.
        """
        bounds = _bounds(task_limits, self._defaults)
        if brand is not Brand.PURE or bounds != self._defaults:
            return None
        if template:
            return self.lineages.use_for(template, lineage).templates.take(template)
        if lineage != OWN:
            return self.lineages.use(lineage).prepared.take(forkable=False)
        child = self._next_of_pool()
        if child is not None:
            self._pause.succeeded()
        return child

    async def spawn(
        self,
        brand: Brand,
        task_limits: Limits,
        template: str = "",
        *,
        lineage: str = OWN,
        forkable: bool = False,
    ) -> TaskProcess:
        """Start a task's process, which then waits for a Welcome on its socket.

        A limit of 0 means the node's default. ``template`` names the template from which a pure task is
        forked; ``prepare`` starts it in advance. With ``forkable`` it can be forked later; then it comes from
        a template in any case, which has an empty name if none is given. It shares secrets with tasks of its
        ``lineage`` alone, unless the template is public. Raise ``NotSupportedError`` if this machine cannot
        run such a task, ``InvalidError`` for a limit out of range, ``OutOfMemoryError`` if the machine cannot
        create the process.
        """
        bounds = _bounds(task_limits, self._defaults)
        if brand is Brand.LEGACY:
            raise NotSupportedError(
                "a node cannot start a legacy program: it has no DIOS socket. Start it outside of DIOS.",
                call="run",
            )
        if brand is Brand.PURE:
            await self.wait_fit()
            with self.using(lineage, template) as user:
                if template or forkable:
                    # It may have ended since it was prepared.
                    await self._prepare_template(template, user)
                    return await user.templates.fork(template, bounds, forkable=forkable)
                child = await self._take_from_pool(bounds, user)
                return child or await self._make(brand, bounds, user)
        return await self._make(brand, bounds, self._own)

    async def hold(self, child: TaskProcess, share: TaskShare) -> None:
        """Hold a child that has not started its task to its part of the machine.

        A machine without the controllers cannot do that, which ``enforcement`` reports. Raise ``DiosError``
        if the child is to be pinned, and cannot be.
        """
        if share.processors:
            link = next((link for link in self._all_links() if link.has(child)), None)
            if link is None:
                raise OutOfMemoryError("cannot pin the task: its process has ended", call="run")
            if link.makes_containers and child.group is not None:
                await trio.to_thread.run_sync(_pin_all, child, child.group, share.processors)
            else:
                await link.pin(child, share.processors)
        if share.best_effort:
            limits_of_task.give_memory_back_first(child.pid)
        child.share = _group_share(share)
        if child.group is not None:
            await trio.to_thread.run_sync(self._hold_group, child)

    def enforcement(self) -> tuple[tuple[str, str], ...]:
        """Return for each resource why a task cannot be held to its part of it; empty texts if it can.

        Mechanisms that are not known yet count as missing; ask again when the fitness has changed.
        """
        return enforcement(self._groups.held, self._mechanisms)

    def _hold_group(self, child: TaskProcess) -> None:
        group, share = child.group, child.share
        if group is None or share is None:
            return
        try:
            self._groups.hold(group, f"task-{child.number}", child.pid, share)
        except ProcessLookupError:
            return  # it has ended, which is reported separately
        except OSError as error:
            if child.exit is None:
                raise DiosError(f"cannot set the task's share: {error.strerror}", call="run") from error

    async def aclose(self) -> None:
        """End every task and zygote."""
        self._is_closing = True
        if self._started is not None:
            await trio.to_thread.run_sync(self._started.close)
        self.lineages.close()
        for child in self._alive:
            child.kill()
        for link in self._all_links():
            await link.close()
        for child in list(self._alive):
            child.lost("the node stopped")
            self._on_end(child)
        for child in self._pool:
            child.close()
        self._pool.clear()

    async def _link(self, brand: Brand, lineage: Lineage) -> ZygoteLink:
        """Return the zygote of a lineage, or that of limbo tasks; start it if there is none or it ended."""
        is_pure = brand is Brand.PURE
        async with lineage.starting_zygote if is_pure else self._starting_limbo:
            link = lineage.zygote if is_pure else self._limbo
            if self._is_closing:
                raise OutOfMemoryError("cannot create the task's process: the node stops", call="run")
            if link is not None and link.alive:
                return link
            setup = self._setup if is_pure else ZygoteSetup(brand, self._setup.available)
            environment = lineage.environment if is_pure else ""
            image = self._image_in(environment)
            if is_pure and lineage.is_in_gvisor:
                path = await trio.to_thread.run_sync(find_gvisor, self._gvisor_runtime)
                started = await self._restarted_for_containers(link, [path], environment, image)
            elif image is not None:
                paths = await trio.to_thread.run_sync(known_runtimes, self._container_runtime)
                started = await self._restarted_for_containers(link, paths, environment, image)
            else:
                started = await self._restarted(link, setup, environment)
            if is_pure:
                lineage.zygote = started
            else:
                self._limbo = started
            return started

    async def _restarted_for_containers(
        self, former: ZygoteLink | None, runtimes: list[str], environment: str, image: ImageSettings | None
    ) -> ZygoteLink:
        """Start a zygote of containers, of an image if there is one, with the first runtime that works.

        Raise ``NotSupportedError`` with the reasons of all if none does.
        """
        base = None if self._environments is None else self._environments.base_of(environment)
        below = "" if base is None else str(base)
        reasons: list[str] = []
        for path in runtimes:
            try:
                container = await trio.to_thread.run_sync(setup_for, path, image, below)
                setup = ZygoteSetup(Brand.PURE, self._setup.available, container=container)
                return await self._restarted(former, setup, environment)
            except (InvalidError, NotSupportedError) as error:
                reasons.append(error.message)
                former = None
        raise NotSupportedError("; ".join(reasons), call="run")

    def may_prepare(self, lineage: str) -> bool:
        """Return True if processes of a lineage can wait for a task, and get lower limits with it."""
        return (
            lineage != OWN and not is_in_gvisor(lineage) and self._image_in(environment_of(lineage)) is None
        )

    def _image_in(self, environment: str) -> ImageSettings | None:
        """Return the settings of the image in an environment, or None if it is none."""
        return None if self._environments is None else self._environments.image_of(environment)

    def _any_task_in(self, environment: str) -> bool:
        """Return True while a task runs in an environment, or starts there.

        Tasks of predecessors may run in any: they are not told apart here.
        """
        return bool(self._former) or self.lineages.any_task_in(environment)

    def _end_idle_in(self, environment: str) -> bool:
        """End the processes that wait in an environment. Return False while a task runs or starts there."""
        lineages = None if self._former else self.lineages.take_idle_in(environment)
        for lineage in lineages or ():
            for link in lineage.links:
                self._nursery.start_soon(link.close, name="end a lineage of an environment")
        return lineages is not None

    def _modules_in(self, environment: str) -> ZygoteModules:
        """Return the modules of a zygote; one for an environment loads no packages of this machine."""
        if not environment or self._environments is None:
            return self._modules
        return structs.replace(
            self._modules, preload=(), environment=str(self._environments.packages_of(environment))
        )

    async def _restarted(
        self, former: ZygoteLink | None, setup: ZygoteSetup, environment: str = ""
    ) -> ZygoteLink:
        """Start a zygote, also in place of a former one that has ended."""
        if former is not None:
            await former.close()
        modules = self._modules_in(environment)
        if setup.container is not None:
            # The first process of a container loads its modules itself.
            modules = structs.replace(modules, preload=())
        link = await ZygoteLink.start(setup, modules)
        self._serve_link(link)
        return link

    def _end_superfluous(self) -> None:
        if self._is_closing:
            return
        for lineage in self.lineages.take_superfluous():
            for link in lineage.links:
                self._nursery.start_soon(link.close, name="end a lineage without tasks")

    async def template_link(self, name: str) -> ZygoteLink:
        """Return the supervisor of the templates of a lineage; start it if there is none or it has ended."""
        with self.using(name) as lineage:
            async with lineage.starting_supervisor:
                link = lineage.supervisor
                if link is None or not link.alive:
                    setup = ZygoteSetup(Brand.PURE, self._setup.available, templates=True)
                    link = lineage.supervisor = await self._restarted(link, setup)
                return link

    def maker_of(self, lineage: str) -> ProcessMaker:
        """Return the maker of the templates of a lineage."""
        return _TemplateMaker(self, lineage)

    async def make_prepared(self, lineage: str) -> TaskProcess:
        """Create a pure task of a lineage with the default limits. Raise DiosError if that fails."""
        with self.using(lineage) as user:
            return await self._make(Brand.PURE, self._defaults, user)

    def _serve_link(self, link: ZygoteLink) -> None:
        link.on_end = self._on_end
        self._nursery.start_soon(self._serve, link, name="serve a zygote")

    async def _serve(self, link: ZygoteLink) -> None:
        """Serve a zygote until it ends. Filling the pool starts another one, with a pause after many ends."""
        await link.run()
        self._end_superfluous()
        if link is self._own.zygote:
            self._pause.failed()
            self._refill.set()

    async def _make(self, brand: Brand, bounds: ProcessLimits, lineage: Lineage) -> TaskProcess:
        self._making += 1
        try:
            return await self._made(brand, bounds, lineage)
        finally:
            self._making -= 1

    async def _made(self, brand: Brand, bounds: ProcessLimits, lineage: Lineage) -> TaskProcess:
        link = await self._link(brand, lineage)
        if not self._groups:
            return await self.counted(await link.make(bounds))
        counted = bounds.with_kernel() if link.has_own_kernel else bounds
        open_group = partial(self._open_group, counted, at_once=link.makes_containers)
        group, entrances = await trio.to_thread.run_sync(open_group)
        try:
            if not entrances:
                return await self.counted(await link.make(bounds, group=group))
            child = await link.make(bounds, entrances=entrances, group=group)
        except BaseException:
            self._dispose(group)
            raise
        finally:
            for number in entrances:
                os.close(number)
        self._watch(child)
        return child

    def _watch(self, child: TaskProcess) -> None:
        """Count a new child among the living, or note its end."""
        self._alive.add(child)
        if child.exit is not None:
            self._on_end(child)
        self._start_time_watch(child)

    def _start_time_watch(self, child: TaskProcess) -> None:
        if child.group is not None and child.group.counts_time:
            self._nursery.start_soon(self._watch_time, child, name="watch the processor time of a container")

    @staticmethod
    async def _watch_time(child: TaskProcess) -> None:
        """End a container whose processes together use more processor time than its limit."""
        while child.exit is None:
            with trio.move_on_after(limits.CONTAINER_TIME_WATCH_MS / 1000):
                await child.wait()
            if child.exit is None:
                child.end_if_over_time()

    def _open_group(self, bounds: ProcessLimits, *, at_once: bool) -> tuple[ControlGroup, tuple[int, ...]]:
        """Return a control group with these limits, and its entrances, if it has any. Raise ``DiosError``.

        A child that enters ``at_once`` starts others, which would be outside if it were moved later.
        """
        group = self._new_group(bounds, counts_time=at_once)
        try:
            return group, group.open_entrances(at_once=at_once)
        except OSError as error:
            self._groups.dispose(group)
            raise _without_limits(error) from error

    def _new_group(self, bounds: ProcessLimits, *, counts_time: bool = False) -> ControlGroup:
        """Return a control group with these limits. Raise ``DiosError``."""
        group: ControlGroup | None = None
        try:
            group = self._groups.make(f"task-{next(_group_numbers)}", counts_time=counts_time)
            group.limit(memory_bytes=bounds.memory_bytes, processes=bounds.processes)
        except OSError as error:
            if group is not None:
                self._groups.dispose(group)
            raise _without_limits(error) from error
        return group

    async def counted(self, child: TaskProcess) -> TaskProcess:
        """Put a new child into a control group of its own, and watch it. Raise ``DiosError``."""
        self._alive.add(child)
        try:
            if self._groups:
                # In a thread, because the kernel may take ten milliseconds; the child locks down meanwhile.
                await trio.to_thread.run_sync(self._enter_group, child)
        except BaseException:
            child.close()
            raise
        finally:
            if child.exit is not None:
                self._on_end(child)
        return child

    def _enter_group(self, child: TaskProcess) -> None:
        """Put the child into a control group of its own. It has not started its task, so all is counted."""
        if child.group is None:
            child.group = self._new_group(child.bounds)
        try:
            child.group.enter(child.pid)
            self._hold_group(child)
        except ProcessLookupError:
            return  # the process has ended already; its end is reported separately
        except OSError as error:
            if child.exit is None:
                raise _without_limits(error) from error

    async def _take_from_pool(self, bounds: ProcessLimits, lineage: Lineage) -> TaskProcess | None:
        """Take a child that waits and lower its limits; None if the limits exceed those of such children."""
        if bounds.exceed(self._defaults):
            return None
        while (child := self._next_of(lineage)) is not None:
            if lineage.zygote is not None and await self.lowered(lineage.zygote, child, bounds):
                if lineage is self._own:
                    self._pause.succeeded()
                return child
        return None

    def _next_of(self, lineage: Lineage) -> TaskProcess | None:
        return self._next_of_pool() if lineage is self._own else lineage.prepared.take(forkable=False)

    def _next_of_pool(self) -> TaskProcess | None:
        """Remove a child that has not ended from the pool and return it; None if there is none."""
        while self._pool:
            child = self._pool.popleft()
            self._refill.set()
            if child.exit is None:
                return child
            child.close()
        return None

    async def lowered(self, link: ZygoteLink, child: TaskProcess, bounds: ProcessLimits) -> bool:
        """Lower the limits of a child that waits. Return False, and end it, if they cannot be lowered."""
        if bounds == child.bounds:
            return True
        try:
            await link.tighten(child, bounds)
            if child.group is not None:
                child.group.limit(memory_bytes=bounds.memory_bytes, processes=bounds.processes)
        except (DiosError, OSError):
            child.close()
            return False
        return True

    def has_room(self) -> bool:
        """Return True if a process may be made in advance: fewer exist than this node may have tasks."""
        return not self._paused and len(self._alive) < self._processes_max

    async def _keep_filled(self) -> None:
        while True:
            while not self._is_closing and self._is_short():
                try:
                    child = await self._make(Brand.PURE, self._defaults, self._own)
                except DiosError:
                    self._pause.failed()
                    continue
                except Exception as error:  # noqa: BLE001 - it costs this child; tasks start on demand
                    _log.error("an internal error kept the pool from being filled", exc_info=error)
                    self._pause.failed()
                    continue
                if child.exit is None:
                    self._pool.append(child)
                else:
                    self._pause.failed()
                    child.close()
            self._filled.set()
            with trio.move_on_at(self._pause.end):
                await self._refill.wait()
            if self._pool:
                # Creating a child keeps a processor busy; the task that has just started comes first.
                await trio.sleep(limits.POOL_REFILL_MS / 1000)
            self._refill = trio.Event()

    def _is_short(self) -> bool:
        return not self._paused and len(self._pool) < self._pool_size and self._pause.is_over

    async def _remove_groups(self) -> None:
        """Remove the control groups of ended tasks: later, because others wait for the ends, and in a thread.

        A group in which a process is still ending is tried again a few times, and then with the next one.
        """
        for turn in range(_REMOVALS_MAX):
            await trio.sleep(_REMOVAL_PAUSE_S * 2**turn)
            await trio.to_thread.run_sync(self._groups.remove_disposed)
            if not self._groups.any_disposed:
                break
        if not self._former:
            await trio.to_thread.run_sync(self._groups.remove_former)
        self._is_removing = False

    async def _watch_memory(self) -> None:
        """End pure tasks above their memory limit, on a machine where no control group does it.

        Most programs end earlier, with an error, because of the limit of their data.
        """
        while True:
            await trio.sleep(limits.TASK_MEMORY_WATCH_MS / 1000)
            for number, child in enumerate(list(self._alive), 1):
                try:
                    if is_over_memory(child):
                        child.kill_for_memory()
                except Exception as error:  # noqa: BLE001 - nothing else bounds its memory: it ends, alone
                    _log.error("an internal error ended a task whose memory is watched", exc_info=error)
                    child.kill()
                if not number % limits.TASK_MEMORY_WATCH_BATCH:
                    await trio.lowlevel.checkpoint()

    def _on_end(self, child: TaskProcess) -> None:
        self._alive.discard(child)
        self._former_ended.set()
        self.lineages.ended(child)
        self._end_superfluous()
        if child.group is not None:
            self._dispose(child.group)
        folder = child.detach_folder()
        if folder >= 0:
            self._nursery.start_soon(_close_folder, folder, name="close a private folder")
        with contextlib.suppress(ValueError):
            # The child ended in the pool: an entry point that does not wait, or a damaged view. After some
            # such ends in a row children are created on demand for a while, where ends are reported.
            self._pool.remove(child)
            if self._own.zygote is not None and self._own.zygote.alive:
                self._pause.failed()
            child.close()
            self._refill.set()

    def _dispose(self, group: ControlGroup) -> None:
        """Remove the control groups of an ended task, later."""
        self._groups.dispose(group)
        if not self._is_removing:
            self._is_removing = True
            self._nursery.start_soon(self._remove_groups, name="remove control groups")


class _TemplateMaker:
    """The part of the pool that makes processes of the templates of one lineage."""

    def __init__(self, pool: ZygotePool, lineage: str) -> None:
        self._pool: Final = pool
        self._lineage: Final = lineage
        self.counted: Final = pool.counted
        self.lowered: Final = pool.lowered
        self.has_room: Final = pool.has_room

    async def template_link(self) -> ZygoteLink:
        """Return the connection to the supervisor of the templates. Raise DiosError if it does not start."""
        return await self._pool.template_link(self._lineage)


def _group_share(share: TaskShare) -> GroupShare:
    """Return a task's part of the machine as its control groups have it."""
    return GroupShare(
        share.cpus_milli,
        0 if share.best_effort else 1000 * share.cpus_milli // max(1, share.node_cpus_milli),
        1000 * share.disk_io // max(1, share.node_disk_io),
        share.best_effort,
        share.replaces,
    )


def _without_limits(error: OSError) -> DiosError:
    """Return the error of a start whose limits cannot be set."""
    kind = OutOfMemoryError if error.errno in _NO_ROOM else DiosError
    return kind(f"cannot set the task's limits: {error.strerror}", call="run")


def _pin_all(child: TaskProcess, group: ControlGroup, processors: tuple[int, ...]) -> None:
    """Let all processes of a container run on these processors alone. Raise ``DiosError``."""
    try:
        group.pin(child.pid, processors)
    except OSError as error:
        raise DiosError(f"cannot pin the task's processes: {error.strerror}", call="run") from error


async def _close_folder(folder: int) -> None:
    """Close the last descriptor of a folder. In a thread, because the kernel then frees its pages."""
    with trio.CancelScope(shield=True):
        await trio.to_thread.run_sync(os.close, folder)


def is_over_memory(child: TaskProcess) -> bool:
    """Return True if a running pure task uses more memory than its limit and the stack, which is extra.

    The files in its private folder count as memory.
    """
    if child.brand is not Brand.PURE or child.exit is not None or not child.pid:
        return False
    try:
        used = limits_of_task.used_bytes(child.pid)
        if child.folder >= 0:
            used += limits_of_task.bytes_of_folder(child.folder)
    except OSError:
        return False  # this machine hides processes; ``dios doctor`` reports it
    return used > child.bounds.memory_bytes + limits.TASK_STACK_BYTES_MAX


def _bounds(task_limits: Limits, defaults: ProcessLimits) -> ProcessLimits:
    memory = task_limits.memory_bytes or defaults.memory_bytes
    processes = task_limits.processes or defaults.processes
    if not limits.TASK_MEMORY_BYTES_MIN <= memory <= limits.TASK_MEMORY_BYTES_MAX:
        raise InvalidError(
            f"a memory limit of {memory} bytes is out of range; it must be between "
            f"{limits.TASK_MEMORY_BYTES_MIN} and {limits.TASK_MEMORY_BYTES_MAX}",
            call="run",
        )
    if task_limits.cpu_ms > limits.TASK_CPU_MS_MAX:
        raise InvalidError(
            f"a CPU limit of {task_limits.cpu_ms} ms is too high; "
            f"at most {limits.TASK_CPU_MS_MAX} are allowed",
            call="run",
        )
    if processes > limits.TASK_OPEN_FILES_MAX:
        raise InvalidError(
            f"a limit of {processes} processes is too high; at most {limits.TASK_OPEN_FILES_MAX} are allowed",
            call="run",
        )
    return ProcessLimits(memory, task_limits.cpu_ms or defaults.cpu_ms, processes)

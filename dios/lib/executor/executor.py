"""``Executor``: calls of functions in sandboxed tasks, with the interface of ``concurrent.futures``."""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import dataclasses
import operator
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, ParamSpec, TypeVar, Unpack, cast

import msgspec

from dios.client.ops.attributes import Handed
from dios.client.sync.node import Node, Reference, connect_or_start
from dios.client.tracing import active
from dios.errors import InvalidError
from dios.forks import give_up_in_child
from dios.lib.executor import actor_calls
from dios.lib.executor.actors import Actor
from dios.lib.executor.call_data import stored_reference
from dios.lib.executor.call_options import NO_NEEDS, NO_OPTIONS, CallOptions, Needs, OptionChanges
from dios.lib.executor.call_spans import trace_call
from dios.lib.executor.declared_results import require_sendable
from dios.lib.executor.frames import Function
from dios.lib.executor.futures import CallFuture
from dios.lib.executor.lifecycle import WorkerOptions
from dios.lib.executor.local_modules import LocalModules
from dios.lib.executor.main_names import MainNames
from dios.lib.executor.main_worker import running_script
from dios.lib.executor.pool import Call, Pool, PoolOptions, PoolStatistics, running_pools
from dios.lib.executor.references import ValueReference, close_putter, open_putter
from dios.lib.executor.result_order import MapOptions, OrderedResults
from dios.lib.executor.sole_references import is_alone
from dios.limits import EXECUTOR_GRACE_MS

if TYPE_CHECKING:
    from types import TracebackType

    from dios.wire.messages import Limits, Work

P = ParamSpec("P")
T = TypeVar("T")


class Executor(concurrent.futures.Executor):
    """Runs calls in pure tasks that stay warm: each has its arguments, the installed packages and no more.

    At most ``max_workers`` tasks run. They start when calls wait; a task that had no call for
    ``idle_timeout`` seconds ends, except the last one, and with None all stay. By default ``max_workers`` is
    the number of processors: those of this machine, or with ``work`` those of the cluster. ``node`` is an
    open ``Node`` or the place of one; with None and no node running, the program gets a private one, as from
    ``dios.connect``. ``groups`` are groups of which the workers are members; ``files`` are aliases of groups:
    calls read and write the files of these groups as ``dios://ALIAS/…``. ``host`` is their node, ``work``
    their needs (``dios.work``), ``limits`` their limits (``dios.Limits``). ``modules`` names modules to send,
    in addition to those that the functions refer to. ``template`` names a template in the settings of the
    nodes, whose modules the workers share. ``packages`` are requirements such as "pandas==2.3", which are
    installed once and which the workers alone import: from the wheels in the folder ``wheels``, which may be
    "dios://ALIAS/DIRECTORY" of a group, or else from the package index of pip. ``env`` are variables of
    the workers' environment.
    ``initializer(*initargs)`` runs first in each worker. ``timeout``, ``retries`` and ``retry_on`` hold for
    all calls, as explained at ``with_options``. After ``max_tasks_per_child`` calls a worker ends, and
    another one takes its place. ``copies`` are functions that may run twice
    at once without harm: a slow call of one is made a second time by a worker that has nothing to do, and
    the first of the two that ends stops the other. With ``trust`` results are loaded without a
    check, which lets the code of the workers do anything in this process.

    Raises UnreachableError if there is no node and none can be started, FileNotFoundError if an alias of
    ``files`` is not in the keyring, InvalidError for arguments that are out of range.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        *,
        node: Node | str | Path | None = None,
        groups: Iterable[Reference] = (),
        files: Iterable[str] = (),
        host: str | None = None,
        work: Work | None = None,
        limits: Limits | None = None,
        modules: Iterable[str] = (),
        initializer: Function[object] | None = None,
        initargs: Sequence[object] = (),
        retries: int = 3,
        retry_on: type[BaseException] | Iterable[type[BaseException]] = (),
        timeout: float | None = None,
        max_tasks_per_child: int | None = None,
        env: Mapping[str, str] | None = None,
        copies: Iterable[Function[object]] = (),
        trust: bool = False,
        idle_timeout: float | None = 30.0,
        template: str = "",
        packages: Iterable[str] = (),
        wheels: str | os.PathLike[str] | None = None,
    ) -> None:
        if max_workers is not None and operator.index(max_workers) <= 0:
            raise ValueError("max_workers must be greater than 0")
        if idle_timeout is not None and not idle_timeout > 0:
            raise InvalidError("idle_timeout must be greater than 0, or None")
        if max_tasks_per_child is not None and max_tasks_per_child <= 0:
            raise ValueError("max_tasks_per_child must be >= 1")
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        repeatable = tuple(copies)
        if not all(map(callable, repeatable)):
            raise TypeError("copies must be functions")
        if running_script():
            raise RuntimeError(
                f"{running_script()} makes an executor when a worker loads it. Put this below "
                'if __name__ == "__main__":'
            )
        self._call_options: Final = NO_OPTIONS.changed(
            {"timeout": timeout, "retries": retries, "retry_on": retry_on}
        )
        variables = checked_variables(env or {})
        worker_work = None if work is None else movable(work)
        self._modules: Final = LocalModules(modules)
        self._main: Final = MainNames(self._modules)
        self._opens_node: Final = not isinstance(node, Node)
        self.node: Final = (
            node if isinstance(node, Node) else connect_or_start(node, pool_size=max_workers or _processors())
        )
        try:
            self._max_workers: Final = max_workers or _workers_for(self.node, work)
            members, inputs = _with_files(self.node, groups, files)
            if packages or wheels is not None:
                template = _environment(self.node, packages, wheels, template, host or "", work)
        except BaseException:
            if self._opens_node:
                self.node.close()
            raise
        options = PoolOptions(
            workers_max=self._max_workers,
            idle_s=idle_timeout,
            worker=WorkerOptions(
                groups=members,
                inputs=inputs,
                host=host or "",
                work=worker_work,
                limits=limits,
                trust=trust,
                template=template,
            ),
            retries=retries,
            calls_per_worker=max_tasks_per_child or 0,
            env=variables,
            copies=repeatable,
            initializer=None if initializer is None else (initializer, tuple(initargs)),
        )
        self._work: Final = work
        self._unused_maps: Final[set[OrderedResults[object]]] = set()
        self._node_use: Final = _NodeUse(self.node if self._opens_node else None)
        self._options: Final = options
        self._actors: Final[dict[int, weakref.ref[Pool]]] = {}
        self._pool: Final = self._new_pool(options)
        self._end_when_forgotten(self._pool)
        self._pools: Final = {NO_NEEDS: self._pool}
        self._pools_lock: Final = threading.Lock()
        open_putter(self)
        _executors.add(self)

    def __repr__(self) -> str:
        return f"<Executor with {self._max_workers} workers>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an executor stays in its program: a call makes further calls with dios.current_executor()"
        )

    @property
    def max_workers(self) -> int:
        """Return the largest number of workers for calls without needs of their own."""
        return self._max_workers

    def submit(self, fn: Function[T], /, *args: object, **kwargs: object) -> CallFuture[T]:
        """Queue ``fn(*args, **kwargs)`` for a worker, and return its future at once.

        A reference of ``put`` or a future among the arguments becomes its value, for which the call waits.
        Any number of calls may wait; ``status()`` of a future returns its place among them and the reason why
        it waits. A function or argument that cannot be pickled is the exception of the future. Raises
        RuntimeError after ``shutdown``, InvalidError for a function whose result no worker can send, such as
        a generator, and UntrustedResultError if its annotation names a class that is not accepted.
        """
        return self.submit_call(self._call_options, fn, args, kwargs)

    def submit_call(
        self, options: CallOptions, fn: Function[T], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> CallFuture[T]:
        """Queue a call with some options."""
        self.require_sendable(fn)
        self._main.take()
        future: CallFuture[T] = CallFuture(options.name)
        if active.recorder is not None:
            trace_call(future, fn)
        call = Call(cast("CallFuture[object]", future), fn, args, kwargs, options=options)
        self._pool_for(options.needs).submit(call)
        return future

    def require_sendable(self, fn: object) -> None:
        """Raise InvalidError or UntrustedResultError if a function says that it returns what is refused."""
        require_sendable(fn, trust=self._options.worker.trust)

    @property
    def is_ended(self) -> bool:
        """Return True after ``shutdown``, or if the executor is broken."""
        return self._pool.is_closing

    @property
    def is_busy(self) -> bool:
        """Return True while calls wait or run."""
        numbers = self.stats()
        return bool(numbers.waiting or numbers.running)

    def renew(self) -> None:
        """Send the values of the script again that have changed since they were sent."""
        self._main.renew()

    def with_options(self, **options: Unpack[OptionChanges]) -> ExecutorView:
        """Return an executor that gives its calls other options and shares this executor's workers.

        A call that has not ended ``timeout`` seconds after its submission ends with CallTimeLimitError, also
        while it waits. It is made again at most ``retries`` times: if its node is lost, or if it ends with an
        exception of ``retry_on``, a class or several. ``name`` is in errors and traces. Calls with ``cpus``
        or ``memory`` (bytes, or a text such as "2 GiB") have workers of their own, which have that memory
        limit and, with ``work``, reserve both. Without ``work`` fewer of them run, so that the machine has
        these processors for each.

        Raises InvalidError for a value that is out of range.
        """
        return ExecutorView(self, self._call_options.changed(options))

    def map(
        self,
        fn: Function[T],
        *iterables: Iterable[object],
        timeout: float | None = None,
        chunksize: int | None = None,
        buffersize: int | None = None,
        progress: bool = False,
    ) -> Iterator[T]:
        """Return an iterator over ``fn(*items)`` for the items of the iterables, in their order.

        ``chunksize`` items go to a worker at a time; None chooses by how long the first items took. Items of
        iterables with a length are submitted at once. An iterator is read as its results are used, with at
        most ``buffersize`` items ahead of them; None chooses some chunks for each worker. With ``progress`` a
        line on standard error shows how many are done. Raises TimeoutError if the next result is not there
        ``timeout`` seconds after this call.
        """
        return self.map_calls(
            self._call_options,
            fn,
            iterables,
            MapOptions(self._max_workers, timeout, chunksize, buffersize, progress=progress),
        )

    def map_calls(
        self, options: CallOptions, fn: Function[T], iterables: tuple[Iterable[object], ...], how: MapOptions
    ) -> OrderedResults[T]:
        """Return the results of ``map`` with some options for the calls."""
        if how.chunksize is not None and how.chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        if how.buffersize is not None and how.buffersize < 1:
            raise ValueError("buffersize must be None or > 0")
        self.require_sendable(fn)
        if options.is_for_items and how.chunksize is None:
            how = how._replace(chunksize=1)

        how = how._replace(trust=self._options.worker.trust)

        def submit(called: Function[object], *args: object) -> concurrent.futures.Future[list[object]]:
            return self.submit_call(options, cast("Function[list[object]]", called), args, {})

        unused = cast("set[OrderedResults[T]]", self._unused_maps)
        return OrderedResults(submit, fn, iterables, how, unused)

    def put(self, value: T) -> ValueReference[T]:
        """Store a value on the node, and return a reference that calls get as an argument.

        Raises InvalidError if the value cannot be pickled, LimitError if there is no room.
        """
        return cast("ValueReference[T]", stored_reference(self._pool.data, value, self._main))

    def actor(
        self, cls: Function[object], /, *args: object, max_restarts: int = 0, **kwargs: object
    ) -> Actor:
        """Make an object of a class in a worker of its own, and return a handle for calls of its methods.

        The worker counts in addition to ``max_workers``. If it is lost, a new one constructs the object
        again, at most ``max_restarts`` times, without its former state; then calls fail with
        ActorEndedError. ``max_tasks_per_child`` does not end it, because its state would be lost. An
        exception of the class is the cause of an InitializerError of the calls. This call waits for futures
        among the arguments. Raises RuntimeError after ``shutdown``.
        """
        if max_restarts < 0:
            raise InvalidError("max_restarts must not be negative")
        if self._pool.is_closing:
            raise RuntimeError("cannot make an actor after shutdown")
        name = getattr(cls, "__name__", "object")
        options = dataclasses.replace(
            self._options,
            workers_max=1,
            worker=dataclasses.replace(self._options.worker, label=f"actor {name}", work=self._work),
            retries=0,
            copies=(),
            calls_per_worker=0,
            initializer=(actor_calls.construct, (cls, args, kwargs)),
            actor_starts=1 + max_restarts,
        )
        pool = self._new_pool(options)
        actors, number = self._actors, id(pool)
        actors[number] = weakref.ref(pool, lambda _: actors.pop(number, None))
        if self.is_ended:
            pool.close(cancel=True)
            raise RuntimeError("cannot make an actor after shutdown")
        return Actor(self, pool, cls)

    def stats(self) -> PoolStatistics:
        """Return numbers of calls (submitted, completed, failed, repeated, waiting, running) and workers."""
        parts = [dataclasses.astuple(pool.statistics()) for pool in list(self._pools.values())]
        return PoolStatistics(*map(sum, zip(*parts, strict=True)))

    def _new_pool(self, options: PoolOptions) -> Pool:
        return Pool(self.node, options, self._modules, self._main, self._node_use.begin())

    def _end_when_forgotten(self, pool: Pool) -> None:
        """Let the workers of a pool end, when its calls have run, after the last use of this executor."""
        weakref.finalize(self, pool.close, cancel=False).atexit = False

    def _all_pools(self) -> list[Pool]:
        actors = [actor for reference in list(self._actors.values()) if (actor := reference())]
        return [*list(self._pools.values()), *actors]

    def _pool_for(self, needs: Needs) -> Pool:
        """Return the workers for calls with some needs."""
        pool = self._pools.get(needs)
        if pool is not None or self._pool.is_closing:
            return pool or self._pool  # which refuses the call
        with self._pools_lock:
            pool = self._pools.get(needs)
            if pool is None:
                places = self._max_workers
                if self._work is None:
                    places = max(1, places * 1000 // max(1000, needs.cpus_milli))
                options = dataclasses.replace(
                    self._options,
                    workers_max=places,
                    worker=needs.applied(self._options.worker),
                    idle_kept=0,
                )
                pool = self._pools[needs] = self._new_pool(options)
                self._end_when_forgotten(pool)
        if self.is_ended:  # perhaps it closed before it could see this pool
            pool.close(cancel=False)
        return pool

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - of the base class
        """Accept no more calls; the workers end when all calls have run, or with ``cancel_futures`` the
        present ones.

        With ``wait`` this returns when all workers have ended. Raises the exception of an iterator of ``map``
        of which no result was used, and which is read to its end now, at most ``buffersize`` items ahead of
        the calls. The workers end nevertheless. Without ``wait`` no iterator is read any further.
        """
        close_putter(self)
        problem: Exception | None = None
        try:
            while wait and self._unused_maps and not cancel_futures:
                problem = self._submit_rest() or problem
        except BaseException:
            self._kill()
            raise
        finally:
            self._unused_maps.clear()
            # Further pools are not added afterwards.
            self._pool.close(cancel=cancel_futures)
            pools = self._all_pools()
            for pool in pools:
                pool.close(cancel=cancel_futures)
            if wait:
                _join(pools)
        if problem is not None:
            raise problem

    def _submit_rest(self) -> Exception | None:
        """Submit the rest of a map of which no result was used. Return the exception that ended this."""
        try:
            unused = [self._unused_maps.pop()]
            is_held = not is_alone(unused)
            unused[0].submit_rest(keep=is_held)
        except Exception as error:  # noqa: BLE001 - of the caller's iterator
            return error
        return None

    def _kill(self) -> None:
        self._unused_maps.clear()
        for pool in self._all_pools():
            pool.kill()

    def kill_workers(self) -> None:
        """End the workers at once, and shut down without waiting: calls that run or wait fail."""
        self._kill()
        self.shutdown(wait=False)

    terminate_workers = kill_workers

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Shut down and wait; after Ctrl-C the workers are ended at once."""
        if kind is not None and not issubclass(kind, Exception):
            self._kill()
        # The exception of the body says more than one of an iterator.
        with contextlib.suppress(*(() if kind is None else (Exception,))):
            self.shutdown()


class ExecutorView(concurrent.futures.Executor):
    """An executor with other options for its calls: ``Executor.with_options``. ``shutdown`` does nothing."""

    def __init__(self, executor: Executor, options: CallOptions) -> None:
        self._executor: Final = executor
        self._options: Final = options

    def __repr__(self) -> str:
        return f"<ExecutorView of {self._executor!r}>"

    def __reduce__(self) -> NoReturn:
        self._executor.__reduce__()

    def with_options(self, **options: Unpack[OptionChanges]) -> ExecutorView:
        """Return an executor with further options, as ``Executor.with_options`` does."""
        return ExecutorView(self._executor, self._options.changed(options))

    def submit(self, fn: Function[T], /, *args: object, **kwargs: object) -> CallFuture[T]:
        """Queue ``fn(*args, **kwargs)``, as ``Executor.submit`` does."""
        return self._executor.submit_call(self._options, fn, args, kwargs)

    def map(
        self,
        fn: Function[T],
        *iterables: Iterable[object],
        timeout: float | None = None,
        chunksize: int | None = None,
        buffersize: int | None = None,
        progress: bool = False,
    ) -> Iterator[T]:
        """Return the results of calls in order, as ``Executor.map`` does.

        With a time limit or ``retry_on``, each item is a call of its own; with ``chunksize``, each chunk.
        """
        how = MapOptions(self._executor.max_workers, timeout, chunksize, buffersize, progress=progress)
        return self._executor.map_calls(self._options, fn, iterables, how)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - of the base class
        """Do nothing: the workers belong to the executor."""


def _environment(
    node: Node,
    packages: Iterable[str],
    wheels: str | os.PathLike[str] | None,
    template: str,
    host: str,
    work: Work | None,
) -> str:
    """Return the environment with some packages on the nodes on which workers may start."""
    # Most executors need none.
    from dios.lib.environments.environments import environment_on, hosts_for  # noqa: PLC0415 - see above

    hosts = hosts_for(node, host, scheduled=work is not None)
    return environment_on(node, packages, wheels=wheels, hosts=hosts, template=template)


def _with_files(
    node: Node, groups: Iterable[Reference], aliases: Iterable[str]
) -> tuple[tuple[Reference, ...], tuple[Handed, ...]]:
    """Return groups with those of some aliases, and the inputs by which a task finds their files."""
    members, inputs = list(groups), []
    for alias in aliases:
        from dios.lib.files.groups import files_for_task  # noqa: PLC0415 - most executors need no files

        more, given = files_for_task(node, alias)
        members += more
        inputs += given
    return tuple(members), tuple(inputs)


def _join(pools: Sequence[Pool]) -> None:
    """Wait for the end of pools; after Ctrl-C their workers are ended at once."""
    try:
        for pool in pools:
            pool.join()
    except BaseException:
        for pool in pools:
            pool.kill()
        for pool in pools:
            pool.join()
        raise


def _processors() -> int:
    return len(os.sched_getaffinity(0))


def _workers_for(node: Node, work: Work | None) -> int:
    """Return the number of tasks that the processors of this machine, or of the cluster, can run at once."""
    if work is None or node.ambient:
        return _processors()
    milli = work.cpus_milli or 1000
    return max(
        1, sum(machine.cpus * 1000 // milli for machine in node.nodes() if machine.usable and machine.fit)
    )


class _NodeUse:
    """The pools that use a connection; it is closed after the last one, if the executor opened it."""

    def __init__(self, opened: Node | None) -> None:
        self._opened: Final = opened
        self._users = 0
        self._lock: Final = threading.Lock()

    def begin(self) -> Callable[[], None]:
        """Count a pool; return the function to call at its end."""
        with self._lock:
            self._users += 1
        return self._end

    def _end(self) -> None:
        with self._lock:
            self._users -= 1
            last = not self._users
        if last and self._opened is not None:
            self._opened.close()


_executors: Final[weakref.WeakSet[Executor]] = weakref.WeakSet()

give_up_in_child(_executors.clear)


@atexit.register
def _shut_down_all() -> None:
    """Wait for the calls of all executors at the end of the program; after Ctrl-C end them."""
    is_interrupted = getattr(sys, "last_type", None) is KeyboardInterrupt
    with contextlib.ExitStack() as steps:
        steps.callback(_end_all_pools, kill=is_interrupted)
        for executor in list(_executors):
            steps.callback(executor.shutdown, wait=False, cancel_futures=is_interrupted)


def _end_all_pools(*, kill: bool) -> None:
    pools = running_pools()
    for pool in pools:
        pool.close(cancel=False)
        if kill:
            pool.kill()
    _join(pools)


def checked_variables(env: Mapping[str, str]) -> dict[bytes, bytes]:
    """Return variables of an environment as a system has them. Raise InvalidError for what cannot be one."""
    given = cast("Mapping[object, object]", env)
    for name, value in given.items():
        are_texts = isinstance(name, str) and isinstance(value, str)
        if not are_texts or not name or "=" in str(name) or "\0" in f"{name}{value}":
            raise InvalidError(f"env needs names of variables with texts, not {name!r}: {value!r}")
    try:
        return {os.fsencode(name): os.fsencode(value) for name, value in env.items()}
    except UnicodeEncodeError as error:
        raise InvalidError(f"env needs texts that a system can have: {error}") from error


def movable(work: Work) -> Work:
    """Return the needs of workers that may be asked to leave their node, unless the caller chose that."""
    if work.restartable or work.reservation:
        return work
    return msgspec.structs.replace(work, restartable=True, grace_ms=EXECUTOR_GRACE_MS)

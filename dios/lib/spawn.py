"""``spawn``: a function call as a pure task, with a future for its result (thesis §9.1.1).

The task gets the text of the function's module, the arguments, and the references among them, and nothing
else. Arguments and results are values as in ``dios.lib.channels``, never pickles: a caller executes nothing
that a task sends back. ``Node.run`` runs whole programs, ``dios.lib.mapreduce`` jobs over much data.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterable, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Final, Generic, ParamSpec, Self, TypeVar, cast

from dios.client.ops.notebook_html import properties
from dios.client.ops.status import Status
from dios.client.program import Program, encode_program
from dios.client.sync.node import Node, Reference, Task, ambient, connect
from dios.errors import Code, DiosError, InvalidError
from dios.lib.exact_values import require_same
from dios.lib.spawned import (
    MODULE,
    PROGRAM,
    argument_names,
    decode_result,
    encode_order,
    hints_of,
    ordered_module,
)
from dios.wire.types import Cause, NameKind, ObjectType

if TYPE_CHECKING:
    from dios.client.ops.attributes import Rights
    from dios.wire.messages import Limits

P = ParamSpec("P")
T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R", bound=Reference)
F = TypeVar("F", bound="Future[object]")

_MAIN: Final = "from dios.lib.spawned import serve\nserve()\n"


class SpawnFailedError(DiosError):
    """The task of a spawned function ended without a result; ``status`` and the message have the reason.

    Correct the function, or spawn it again if the task was lost with its node.
    """

    code = Code.ECANCELED

    def __init__(self, message: str, status: Status) -> None:
        super().__init__(message, call="spawn", fingerprint=status.fingerprint)
        self.status: Final = status


class Future(Generic[R_co]):
    """The present or future result of a spawned function. A ``with`` body ends the task if it still runs."""

    def __init__(self, task: Task, order: Reference, returns: type[R_co], label: str) -> None:
        self.task: Final = task
        """The task, for ``select``, its console, and pauses."""
        self._order: Final = order
        self._returns: Final = returns
        self._label: Final = label
        self._result: list[R_co] = []
        self._failure: SpawnFailedError | None = None

    def __repr__(self) -> str:
        return f"<Future of {self._label} {self.task.fingerprint}>"

    def _repr_html_(self) -> str:
        """Return the function and its task for a notebook; no call is made for it."""
        state = "failed" if self._failure is not None else "done" if self._result else "not taken yet"
        return properties(
            "Future",
            (("function", self._label), ("task", self.task.fingerprint), ("result", state)),
        )

    @property
    def done(self) -> bool:
        """Return True if ``result`` would return without waiting."""
        return bool(self._result) or self._failure is not None or self.task.status().ended

    def result(self, timeout: float | None = None) -> R_co:
        """Wait for the function's value and return it; TimeLimitError after ``timeout`` seconds.

        Raises SpawnFailedError with the task's last lines if it ended without a value; ProtocolError if the
        value is not of the type in the function's annotation.
        """
        if self._failure is not None:
            raise self._failure
        if not self._result:
            status = self.task.wait(timeout)
            if status.ok:
                self._result.append(decode_result(self._order.read_bytes(), self._returns))
            else:
                why = status.detail or str(status.cause)
                self._failure = SpawnFailedError(f"{self._label} gave no result: {why}", status)
                self._failure.__cause__ = _remote_traceback(status)
            self._drop()
            if self._failure is not None:
                raise self._failure
        return self._result[0]

    def cancel(self) -> None:
        """End the task if it still runs; ``result`` then raises SpawnFailedError."""
        if not self.task.zombie:
            self.task.kill()

    def _drop(self) -> None:
        self.task.close()
        self._order.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()
        self._drop()


def _remote_traceback(status: Status) -> Exception | None:
    """Return the end of the function's traceback as the cause of a failure; None if it raised nothing."""
    if status.cause is not Cause.EXCEPTION:
        return None
    # The class is with the pickles of the executor, which a task that spawns does not need.
    from dios.lib.executor.remote_errors import RemoteTraceback  # noqa: PLC0415 - see above

    return RemoteTraceback(status.detail)


class Spawner:
    """Spawns functions on a node with the same options: ``Spawner(node, limits=...).spawn(fib, 10)``.

    ``groups`` are the groups of the tasks (none: an empty one each); ``host`` is the name of their node
    (default: any with room). ``modules`` are further sources that the functions' module imports, in addition
    to the modules installed on the node.
    """

    def __init__(
        self,
        node: Node,
        *,
        groups: Iterable[Reference] = (),
        limits: Limits | None = None,
        modules: dict[str, str] | None = None,
        host: str = "",
    ) -> None:
        self.node: Final = node
        self._groups: Final = tuple(groups)
        self._limits: Final = limits
        self._modules: Final = dict(modules or {})
        self._host: Final = host
        self._programs: Final[dict[str, Reference]] = {}

    def spawn(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call ``function`` in a pure task, and return its future at once.

        It must be defined at the top of a module, whose text is sent. An end of a channel among the
        arguments moves to the task; a reference is delegated with its rights, or as ``narrowed``. Values keep
        their types; a record needs the annotation of its argument, and InvalidError names one without it.
        """
        module, name = _place_of(function)
        hints = hints_of(function)
        names = argument_names(cast("FunctionType", function), len(args))
        for argument, value in [*zip(names, args, strict=True), *kwargs.items()]:
            require_same(value, hints.get(argument, object), f"argument {argument} of {name}")
        executable, called = self._program(module)
        order, moved, handed = encode_order(called, name, args, kwargs)
        paper = self.node.create(ObjectType.SHMEM_BLOB, data=order, naming=NameKind.ANONYMOUS)
        try:
            task = self.node.run(
                executable,
                groups=self._groups,
                inputs={
                    "": paper.restrict("read", "write"),
                    # A task cannot delegate the reference to its own program, and so cannot run it elsewhere.
                    PROGRAM: executable.restrict("read", "execute", "delegate"),
                    **handed,
                },
                label=name,
                limits=self._limits,
                wait=False,
                host=self._host,
            )
        except DiosError:
            paper.close()
            raise
        for end in moved:
            end.close()
        returns = cast("type[T]", hints.get("return", object))
        return Future(task, paper, returns, name)

    def wait_any(self, futures: Sequence[F], timeout: float | None = None) -> F | None:
        """Return the first of ``futures`` whose task has ended; None after ``timeout`` seconds."""
        for future in futures:
            if future.task.zombie:
                return future
        by_task: dict[Reference, F] = {future.task: future for future in futures}
        ready = self.node.select(list(by_task), timeout=timeout)
        return None if ready is None else by_task[ready]

    def _program(self, module: str) -> tuple[Reference, str]:
        """Return the executable for a module's functions, and the module's name in it."""
        own = ordered_module()
        if own is not None and module == own and not self._modules:
            # The calls of a spawned function run the same program.
            return self.node.input(PROGRAM), own
        called = MODULE if module == "__main__" else module
        program = self._programs.get(called)
        if program is None:
            modules = {**self._modules, called: _source_of(module)}
            packet = encode_program(Program(_MAIN, modules))
            program = self._programs[called] = self.node.create_program(packet)
        return program, called

    def close(self) -> None:
        """Drop the programs; spawned tasks still run."""
        for program in self._programs.values():
            program.close()
        self._programs.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_of_this_task: Spawner | None = None


def spawn(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Call ``function`` from inside a task in a pure task of its own, with nothing but its arguments.

    Outside tasks there is no node: use ``with dios.connect() as node: Spawner(node).spawn(...)``.
    """
    global _of_this_task
    if ambient() is None:
        raise InvalidError("this is not a task. Give the node: Spawner(node).spawn(...)", call="spawn")
    if _of_this_task is None:
        _of_this_task = Spawner(connect())
    return _of_this_task.spawn(function, *args, **kwargs)


def narrowed(reference: R, *rights: Rights) -> R:
    """Return a reference as an argument of ``spawn`` with these rights only."""
    return cast("R", reference.restrict(*rights))


def _place_of(function: Callable[P, T]) -> tuple[str, str]:
    """Return the module and name of a function that a task can find again."""
    if not isinstance(function, FunctionType):
        raise InvalidError(f"cannot spawn {function!r}: define a plain function in a module")
    module, name = function.__module__, function.__name__
    if getattr(sys.modules.get(module), name, None) is not function:
        raise InvalidError(f"cannot spawn {function.__qualname__}: define it at the top of its module")
    return module, name


def _source_of(module: str) -> str:
    """Return a module's text, from a disk or from a task's program."""
    file = getattr(sys.modules[module], "__file__", None)
    lines = linecache.getlines(file) if isinstance(file, str) else []
    if not lines:
        raise InvalidError(f"the source of module {module!r} is not known. Spawn functions of a .py file.")
    return "".join(lines)

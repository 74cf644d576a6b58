"""The joblib backend "dios": the calls of ``joblib.Parallel`` run in sandboxed tasks.

Importing this module registers the backend: ``with joblib.parallel_config(backend="dios", n_jobs=4):``. Other
arguments of ``parallel_config`` go to ``dios.Executor``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Final, cast
from weakref import WeakSet

import joblib
from joblib.parallel import AutoBatchingMixin, FallbackToBackend, ParallelBackendBase, SequentialBackend

from dios.bridges.joblib_worker import WorkerEnvironment, prepare_worker
from dios.errors import InvalidError
from dios.lib.executor.executor import Executor
from dios.lib.executor.futures import CallFuture
from dios.lib.executor.nested import is_in_worker
from dios.lib.executor.shared_executors import forget_shared, shared_executor

if TYPE_CHECKING:
    from concurrent.futures import Future

NAME: Final = "dios"

_OF_FILES: Final = ("temp_folder", "max_nbytes", "mmap_mode", "verbose", "context")
"""The options for joblib's files of arrays. Large arrays are sent as blobs here."""


class DiosBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc] # joblib has no types
    """Runs joblib's batches of calls on an executor that ``Parallel`` calls with the same options share."""

    supports_retrieve_callback: ClassVar[bool] = True
    supports_inner_max_num_threads: ClassVar[bool] = True
    default_n_jobs: ClassVar[int] = -1

    _workers: Executor | None = None
    _is_own = False

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)
        self._futures: Final[WeakSet[CallFuture[object]]] = WeakSet()

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return the number of workers for ``n_jobs``: -1 is one for each processor, None is one.

        A call in a worker has no workers of its own, so that a ``Parallel`` in it runs there.
        """
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is None or is_in_worker():
            return 1
        return n_jobs if n_jobs > 0 else max(1, len(os.sched_getaffinity(0)) + 1 + n_jobs)

    def configure(
        self,
        n_jobs: int = 1,
        parallel: object = None,
        prefer: str | None = None,
        require: str | None = None,
        **options: object,
    ) -> int:
        """Start the executor for a ``Parallel`` call and return the number of its workers."""
        del prefer, require
        workers = self.effective_n_jobs(n_jobs)
        if workers == 1:
            raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
        self.parallel = parallel
        chosen = {**self.backend_kwargs, **options}
        initializer = chosen.pop("initializer", None)
        initargs = cast("tuple[object, ...]", chosen.pop("initargs", ()))
        for name in _OF_FILES:
            chosen.pop(name, None)
        environment = WorkerEnvironment(self._prepare_worker_env(n_jobs=workers))
        chosen.update(initializer=prepare_worker, initargs=(environment, initializer, *initargs))
        self._is_own = False
        try:
            self._workers = shared_executor(workers, **chosen)
        except InvalidError:  # its arguments cannot be compared with those of another one
            self._workers = Executor(workers, **chosen)
            self._is_own = True
        return workers

    def submit(
        self, func: Callable[[], object], callback: Callable[[Future[object]], object] | None = None
    ) -> Future[object]:
        """Queue a batch of calls; ``callback`` is called with its future when it is done."""
        if self._workers is None:
            raise RuntimeError("the backend has ended. Use it in the body of its Parallel object.")
        future = self._workers.submit(run_batch, func)
        self._futures.add(future)
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, out: Future[object]) -> object:
        """Return the result of a batch, or raise its exception."""
        return out.result()

    def terminate(self) -> None:
        """End the use of the workers: they stay for the next ``Parallel`` call with the same options."""
        executor, self._workers = self._workers, None
        if executor is not None and self._is_own:
            executor.shutdown()
        self.reset_batch_stats()

    def abort_everything(self, ensure_ready: bool = True) -> None:  # noqa: FBT001, FBT002 - of the base class
        """End the calls that run or wait, because one failed; with ``ensure_ready``, start other workers.

        A ``Parallel`` call of another thread may have calls in the same executor, which go on.
        """
        executor, self._workers = self._workers, None
        for future in list(self._futures):
            future.kill()
        if executor is not None:
            forget_shared(executor)
        if ensure_ready:
            options = cast("dict[str, object]", getattr(self.parallel, "_backend_kwargs", {}))
            self.configure(getattr(self.parallel, "n_jobs", 1), self.parallel, **options)  # type: ignore[arg-type]  # joblib checks them


def run_batch(batch: Callable[[], object]) -> object:
    """Run a batch of calls. A worker that loads this function knows the backend by its name."""
    return batch()


joblib.register_parallel_backend(NAME, DiosBackend)

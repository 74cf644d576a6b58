"""``dios.checkpointed``: the program has a function that saves its state, and another that restores it.

``dios.lib.movable`` starts such programs again on other nodes, and hands them the object that has the state.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from dios.client.sync.node import Node, Reference, connect
from dios.errors import DiosError, InvalidError, TooLargeError
from dios.limits import CHECKPOINT_BYTES_MAX
from dios.wire.types import Semantics

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

LABEL: Final = "dios.checkpoint"
"""The label of the output that has the checkpoint."""

_LOOK_S: Final = 0.1
"""The time between two questions to the node. Most calls of ``point`` only read the clock."""


class Checkpoints:
    """The checkpoints of this task; ``dios.checkpointed`` makes it.

    ``restored`` is True if the program continues from a checkpoint.
    """

    def __init__(
        self,
        save: Callable[[], bytes],
        restore: Callable[[bytes], object],
        every: float | None,
        node: Node | None = None,
    ) -> None:
        if every is not None and every <= 0:
            raise InvalidError(f"every must be more than 0 seconds, not {every:g}", call="checkpointed")
        self._save: Final = save
        self._restore: Final = restore
        self._every: Final = every
        self._node: Final = connect() if node is None else node
        self._object: Final[Reference | None] = next(
            (output for output in self._node.outputs if output.label == LABEL), None
        )
        self._look_at = 0.0
        self._save_at = float("inf")
        self.restored = False

    def __enter__(self) -> Self:
        if self._object is not None:
            data = self._object.read_bytes()
            if data:
                self._restore(data)
                self.restored = True
            if self._every is not None:
                self._save_at = time.monotonic() + self._every
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing: a program that goes on after the ``with`` only is not asked any more."""

    def point(self) -> None:
        """Save the state if the task has to leave its node, and end it then; call this wherever that is safe.

        It also saves the state if the last checkpoint is older than ``every`` seconds. It does not return if
        the task leaves: the program goes on elsewhere, from this state.
        """
        now = time.monotonic()
        if now < self._look_at or self._object is None:
            return
        self._look_at = now + _LOOK_S
        if self._node.wait_move(timeout=0) is not None:
            self._leave()
        if now >= self._save_at:
            self._save_again()

    def sleep(self, seconds: float) -> None:
        """Sleep as ``time.sleep`` does; the task may leave its node meanwhile, as at a ``point``."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self._object is None:
                time.sleep(left)
            elif (
                self._node.wait_move(timeout=min(left, max(0.0, self._save_at - time.monotonic())))
                is not None
            ):
                self._leave()
            elif time.monotonic() >= self._save_at:
                self._save_again()

    def save(self) -> None:
        """Save the state now. The former checkpoint stays valid until the new one is complete."""
        if self._object is None:
            return
        data = self._save()
        if not data:
            raise InvalidError("the function that saves the state returned no bytes", call="checkpointed")
        if len(data) > CHECKPOINT_BYTES_MAX:
            raise TooLargeError(
                f"the state has {len(data)} bytes; a checkpoint has at most {CHECKPOINT_BYTES_MAX}",
                call="checkpointed",
            )
        # The version changes as a whole, or not at all if this task ends before.
        self._object.write_bytes(data, semantics=Semantics.ANY, replace=True)
        if self._every is not None:
            self._save_at = time.monotonic() + self._every

    def _save_again(self) -> None:
        """Save the state because its time has come; if the node refuses that, say so and try again later."""
        self._save_at = time.monotonic() + (self._every or 0.0)
        try:
            self.save()
        except (InvalidError, TooLargeError):
            raise  # the program would not save anything later either
        except DiosError as error:
            sys.stderr.write(f"dios.checkpointed: the state was not saved: {error.message}\n")

    def _leave(self) -> None:
        failure = ""
        try:
            self.save()
        except Exception as error:  # noqa: BLE001 - whatever it is, the run begins again with this reason
            failure = error.message if isinstance(error, DiosError) else f"{type(error).__name__}: {error}"
        sys.stdout.flush()
        sys.stderr.flush()
        self._node.leave(failure)


def checkpointed(
    save: Callable[[], bytes], restore: Callable[[bytes], object], *, every: float | None = None
) -> Checkpoints:
    """Let this task be moved to another node instead of beginning again there.

    ``save`` returns the state as bytes, and ``restore`` takes such bytes; it is called at the beginning of
    the ``with`` body if the run was moved, or began again after a checkpoint. ``save`` is called only within
    the methods ``point``, ``sleep`` and ``save``, so the state is always that of such a place. With
    ``every``, ``point`` and ``sleep`` also call it after that number of seconds, so that a run whose node is
    lost continues from there.

    In a program that nobody moves, such as one that runs without ``--grace``, nothing is saved or restored.
    """
    return Checkpoints(save, restore, every)

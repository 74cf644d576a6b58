"""Runs a node's coordinator of Firmament as a limbo task, and restarts it when it ends.

No node loads ``dios.firmament`` itself. A coordinator that ends loses nothing: waiting runs are in the nodes'
submission queues, running tasks go on, and the next coordinator reads both.
"""

from __future__ import annotations

import importlib.util
import logging
from typing import TYPE_CHECKING, Final

import trio

from dios import limits
from dios.errors import DiosError
from dios.installation import extra_command
from dios.node.settings import CoordinatorMode, NodeMode, Settings
from dios.transport.identity import durable_files
from dios.wire.messages import Limits
from dios.wire.scheduling import COORDINATOR_LABEL
from dios.wire.types import ObjectType

if TYPE_CHECKING:
    from dios.client.aio.node import AsyncNode, AsyncReference

_KEPT: Final = ("knowledge", "shares")
"""The labels of the durable objects in which a coordinator keeps its measurements and the shares."""
_PROGRAM: Final = b"from dios.firmament.coordinator.main import main\n\nmain()\n"
_NEEDED: Final = ("numpy", "numba")

_log: Final = logging.getLogger(__name__)


def absence(settings: Settings, refused: str = "") -> str:
    """Return why this node runs no coordinator; empty if it runs one.

    ``refused`` is the reason why other nodes let this one not schedule, if its roles do not let it.
    """
    if settings.coordinator is CoordinatorMode.OFF:
        return 'coordinator = "off"'
    if refused:
        return refused
    if settings.mode is NodeMode.RESTRICTED:
        return "a restricted node runs only pure tasks, and a coordinator is a limbo task"
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if not missing:
        return ""
    remedy = "the extra cluster has them"
    if settings.coordinator is CoordinatorMode.ON:
        # Only then, because it reads the description of the package, which would delay the node's start.
        remedy = extra_command("cluster")
    return f"{' and '.join(missing)} missing: {remedy}"


def wanted(settings: Settings, refused: str = "") -> bool:
    """Return True if this node runs a coordinator; log the reason if a requested one does not run."""
    why = absence(settings, refused)
    if why and settings.coordinator is not CoordinatorMode.OFF:
        is_asked = settings.coordinator is CoordinatorMode.ON or settings.mode is NodeMode.RESTRICTED
        level = logging.WARNING if is_asked else logging.INFO
        _log.log(level, "no coordinator: tasks go to the nodes with the fewest", extra={"why": why})
    return not why


async def keep_coordinator(settings: Settings) -> None:
    """Run the node's coordinator and restart it when it ends, until cancelled."""
    # Imported late, because a node without a coordinator needs no client in its process.
    from dios.client.aio.node import open_node  # noqa: PLC0415 - see above

    arguments = (
        *(settings.scheduling.value, settings.cost_model),
        *(settings.fairness.value, str(settings.fairness_memory)),
    )
    pause_s = limits.COORDINATOR_RESTART_MS_MIN / 1000
    while True:
        began = trio.current_time()
        try:
            async with open_node(settings.socket, groups=(), label="keeps the coordinator") as node:
                kept = {label: await _kept(node, settings, label) for label in _KEPT}
                task = await node.run(
                    _PROGRAM,
                    brand="limbo",
                    label=COORDINATOR_LABEL,
                    args=arguments,
                    inputs={label: reference for label, reference in kept.items() if reference is not None},
                    limits=Limits(
                        memory_bytes=limits.COORDINATOR_MEMORY_BYTES,
                        # A task for an operator's cost model, and the next one before that ends.
                        total_memory_bytes=limits.COORDINATOR_MEMORY_BYTES
                        + 2 * limits.SCHED_MODEL_MEMORY_BYTES,
                    ),
                    local=True,
                )
                status = await task.wait()
                why = status.detail.strip().rpartition("\n")[2] or f"status {status.exit_status}"
                lasted_ms = (trio.current_time() - began) * 1000
                if status.exit_status == 0 and lasted_ms > limits.COORDINATOR_STABLE_MS:
                    # It ends by itself to free memory when there has been nothing to schedule for some time.
                    continue
        except (DiosError, OSError) as error:
            why = str(error)
        if trio.current_time() - began > limits.COORDINATOR_STABLE_MS / 1000:
            pause_s = limits.COORDINATOR_RESTART_MS_MIN / 1000
        _log.warning("the coordinator ended and is restarted", extra={"why": why, "in_s": pause_s})
        await trio.sleep(pause_s)
        pause_s = min(pause_s * 2, limits.COORDINATOR_RESTART_MS_MAX / 1000)


async def _kept(node: AsyncNode, settings: Settings, label: str) -> AsyncReference | None:
    """Return a durable object of the coordinator; create it at the first start."""
    path = settings.identity / f"{label}.name"
    try:
        name = await trio.to_thread.run_sync(path.read_bytes)
    except FileNotFoundError:
        name = b""
    # A damaged file counts as missing: measurements are lost, and other nodes know the shares.
    reference = await node.find(name) if len(name) == limits.NAME_BYTES else None
    if reference is not None:
        return reference
    home = node.home
    if home is None:
        return None
    blob = await node.create(ObjectType.DURABLE_BLOB, groups=(home,))
    # The name is the right to the object, so only the node's user may read the file.
    if blob.name is not None:
        await trio.to_thread.run_sync(durable_files.write, path, blob.name)
    return blob

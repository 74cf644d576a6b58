"""Devices of this node, which tasks ask for by kind and number: the check, the choice, and the grant.

A device belongs to one living task at a time. The scheduler counts devices; the node chooses them.
"""

from __future__ import annotations

from collections import Counter

from dios.core.model.records import Task
from dios.core.model.state import State
from dios.core.remote.peers import Here
from dios.errors import NotSupportedError, WouldBlockError
from dios.wire import messages
from dios.wire.types import Brand


def kinds_of(here: Here) -> tuple[messages.DeviceRequest, ...]:
    """Return the number of the node's devices of each kind."""
    counts = Counter(device.kind for device in here.devices)
    return tuple(messages.DeviceRequest(kind, count) for kind, count in sorted(counts.items()))


def require_devices(state: State, here: Here, work: messages.Work, brand: Brand) -> None:
    """Raise WouldBlockError if the node lacks free devices for a task.

    Raise NotSupportedError for a pure task that asks for devices with files, which it could never open.
    """
    for wanted in work.devices:
        of_kind = [device for device in here.devices if device.kind == wanted.kind]
        if brand is Brand.PURE and any(device.files for device in of_kind):
            raise NotSupportedError(
                f"a pure task cannot have a {wanted.kind} of node {here.name}: it opens no files, and the "
                "device is a file. Run the task with --limbo."
            )
        taken = sum(device.kind == wanted.kind for device in _taken(state))
        if taken + wanted.count > len(of_kind):
            raise WouldBlockError(
                f"node {here.name} has {len(of_kind)} devices of the kind {wanted.kind}; with this task "
                f"{taken + wanted.count} would be reserved"
            )


def free_devices(state: State, work: messages.Work) -> tuple[messages.Device, ...]:
    """Return the devices for a task that starts now, the first free ones of each kind."""
    if state.cluster is None or not work.devices:
        return ()
    taken = {(device.kind, device.name) for device in _taken(state)}
    chosen: list[messages.Device] = []
    for wanted in work.devices:
        free = [
            device
            for device in state.cluster.here.devices
            if device.kind == wanted.kind and (device.kind, device.name) not in taken
        ]
        chosen += free[: wanted.count]
    return tuple(chosen)


def granted(state: State, task: Task) -> tuple[messages.DeviceGrant, ...]:
    """Return the devices of a task by kind, with an entry for each kind that the node has."""
    if state.cluster is None or not state.cluster.here.devices:
        return ()
    grants: list[messages.DeviceGrant] = []
    for kind in sorted({device.kind for device in state.cluster.here.devices}):
        own = [device for device in task.devices if device.kind == kind]
        files = tuple(file for device in own for file in device.files)
        grants.append(messages.DeviceGrant(kind, tuple(device.name for device in own), files))
    return tuple(grants)


def _taken(state: State) -> list[messages.Device]:
    return [device for task in state.living_tasks() for device in task.devices]

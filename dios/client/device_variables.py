"""The environment variables that name a task's devices to its libraries."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from dios.wire.messages import DeviceGrant

GPU: Final = "gpu"
DEVICES_VARIABLE: Final = "DIOS_TASK_DEVICES"
_GPU_VARIABLES: Final = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")


def device_variables(granted: Iterable[DeviceGrant]) -> dict[str, str]:
    """Return the variables of a task with these devices; empty on a node without devices.

    ``DIOS_TASK_DEVICES`` is like ``gpu=0,1 test=2``. Where a node has GPUs, the variables of CUDA name
    those of the task, or none.
    """
    named = list(granted)
    if not named:
        return {}
    variables = {
        DEVICES_VARIABLE: " ".join(
            f"{named_grant.kind}={','.join(named_grant.names)}" for named_grant in named if named_grant.names
        )
    }
    for grant in named:
        if grant.kind == GPU:
            variables |= dict.fromkeys(_GPU_VARIABLES, ",".join(grant.names))
    return variables

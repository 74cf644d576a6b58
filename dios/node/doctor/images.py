"""Tests that sandboxes of a node in a directory can have images, or be in gVisor: a container is started."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from dios import limits
from dios.errors import DiosError
from dios.host.confinement.mechanisms import Mechanism
from dios.host.confinement.privileges import UNPRIVILEGED_ID
from dios.host.containers.runtimes import (
    ANY,
    NEEDED,
    NO_RUNTIME,
    find_gvisor,
    is_gvisor,
    known_runtimes,
    lacking,
    setup_for,
)
from dios.host.process.zygote_messages import (
    FromZygote,
    SetupFailed,
    ZygoteModules,
    ZygoteReady,
    ZygoteSetup,
    decode_from_zygote,
    encode,
)
from dios.host.process.zygote_process import start_zygote
from dios.node.doctor.finding import DoctorFinding, DoctorTest
from dios.node.settings import load
from dios.start_watch import StartWatch
from dios.wire.images import ImageSettings
from dios.wire.types import Brand

_TEST: Final = DoctorTest("images", "sandboxes have the programs of an OCI image")
_TEST_OF_GVISOR: Final = DoctorTest("gvisor", "sandboxes run in gVisor where their user asks for it")
_ENTRY: Final = "dios.client.task_main:main"


def examine_images(data: Path, mechanisms: Mapping[str, Mechanism]) -> DoctorFinding | None:
    """Return if sandboxes of a node in ``data`` can have images; None if its settings cannot be read."""
    try:
        settings = load(data)
    except DiosError:
        return None  # other tests show what is wrong with the settings
    if not settings.environments_bytes:
        return _TEST.result("off: environments_bytes is 0")
    if settings.container_runtime == NO_RUNTIME:
        return _TEST.result(f'off: container_runtime is "{NO_RUNTIME}"; "{ANY}" permits images')
    missing = lacking(name for name, mechanism in mechanisms.items() if mechanism.available)
    if missing:
        advice = "see these mechanisms above, and run the node as root"
        return _TEST.result(f"refused: an image needs {', '.join(missing)}", advice)
    try:
        runtimes = known_runtimes(settings.container_runtime)
    except DiosError as error:
        return _TEST.result(f"refused: {error.message}", "install the package crun, or runc")
    reasons: list[str] = []
    for path in runtimes:
        reason = obstacle_to(path)
        if not reason:
            return _TEST.result(f"{path} starts containers")
        reasons.append(reason)
    return _TEST.result(f"refused: {'; '.join(reasons)}", "install another OCI runtime: crun or runc")


def examine_gvisor(data: Path, mechanisms: Mapping[str, Mechanism]) -> DoctorFinding | None:
    """Return if sandboxes of a node in ``data`` can be in gVisor; None if its settings cannot be read."""
    try:
        settings = load(data)
    except DiosError:
        return None  # other tests show what is wrong with the settings
    if settings.gvisor_runtime == NO_RUNTIME:
        return _TEST_OF_GVISOR.result(f'off: gvisor_runtime is "{NO_RUNTIME}"')
    missing = lacking(
        (name for name, mechanism in mechanisms.items() if mechanism.available), own_kernel=True
    )
    if missing:
        return _TEST_OF_GVISOR.result(
            f"refused: gVisor needs {', '.join(missing)}: see these mechanisms above"
        )
    try:
        path = find_gvisor(settings.gvisor_runtime)
    except DiosError:
        return _TEST_OF_GVISOR.result(
            f"off: this machine has no program {settings.gvisor_runtime}; the package runsc has it"
        )
    reason = obstacle_to(path)
    if reason:
        return _TEST_OF_GVISOR.result(f"refused: {reason}", "install another release of gVisor")
    return _TEST_OF_GVISOR.result(f"{path} starts sandboxes with a kernel of their own")


def obstacle_to(path: str) -> str:
    """Return the reason why the runtime ``path`` starts no containers here, or "" if it does: it is tried."""
    name = Path(path).name
    answer: FromZygote | None = None
    with tempfile.TemporaryDirectory(prefix="dios-image-") as folder:
        os.chown(folder, UNPRIVILEGED_ID, UNPRIVILEGED_ID)
        try:
            container = setup_for(path, None if is_gvisor(path) else ImageSettings())
            environment = folder if container.has_image else ""
            zygote = start_zygote(Brand.PURE, ZygoteModules(_ENTRY, (), (), environment=environment))
            with contextlib.closing(zygote):
                zygote.control.send(encode(ZygoteSetup(Brand.PURE, tuple(NEEDED), container=container)))
                if StartWatch(zygote.process.pid).wait(zygote.control.fileno()):
                    answer = decode_from_zygote(zygote.control.recv(limits.ZYGOTE_MESSAGE_BYTES_MAX))
        except (OSError, DiosError, msgspec.DecodeError) as error:
            return f"{name} was not tried: {error}"
    if isinstance(answer, ZygoteReady):
        return ""
    return (
        answer.reason
        if isinstance(answer, SetupFailed)
        else f"{name} gave no answer, so this is unknown: try again"
    )

"""The messages between the daemon and a zygote, and between a zygote and a template, one per packet.

Tasks never see these sockets. Descriptors travel with ``CreateChild`` (the task's socket, its console's
write end, and the files through which it enters its control groups) and with ``ChildCreated`` (a pidfd of
the new process, then its private folder if no control group counts it).
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta, Struct

from dios import limits
from dios.host.confinement.native_programs import PROGRAMS_MAX, NativeProgram
from dios.host.containers.runtimes import ContainerSetup
from dios.wire.fields import ByteCount, Count, Identifier, Message, Milliseconds, ProcessId, Text
from dios.wire.types import Brand

_Paths: TypeAlias = Annotated[tuple[Text, ...], Meta(max_length=256)]

GROUPS_MAX: Final = 4
"""The control groups of a child at most: one each for memory, processes, processors and processor time."""

ENTER_GROUP: Final = b"0"
"""The writer itself, in a file of a control group."""

LOCKDOWN_FAILED_STATUS: Final = 252
"""Exit status of a child whose lock-down failed; the reason is on its console."""


class ZygoteModules(Struct, frozen=True, tag=4):
    """The first message to a zygote: entry point, modules to load, and directories to import them from.

    ``warm_up`` (``module:function``) is called when they are loaded. ``environment`` is the folder of the
    packages that its tasks import before those of this machine; the zygote itself imports nothing from there.
    """

    entry: Text
    preload: Annotated[tuple[Text, ...], Meta(max_length=limits.PRELOAD_MODULES_MAX)]
    paths: _Paths
    warm_up: Text = ""
    environment: Text = ""


class ZygoteSetup(Struct, frozen=True, tag=1):
    """The second message to a zygote: the brand of its tasks, and the available mechanisms.

    With ``templates`` it is the supervisor of templates: its tasks are forked from those. ``programs`` are
    the native programs that its pure tasks may become. With ``container`` its tasks run in containers.
    """

    brand: Brand
    available: _Paths
    templates: bool = False
    programs: Annotated[tuple[NativeProgram, ...], Meta(max_length=PROGRAMS_MAX)] = ()
    container: ContainerSetup | None = None


class CreateChild(Struct, frozen=True, tag=2):
    """A request to create child ``id`` with these limits; 0 means no limit.

    ``template`` is the child from which it is forked; 0 is the zygote itself. With ``forkable`` that is a
    template, and the child can be forked later; with ``is_fork`` that is a session which can be forked.
    The child enters ``groups`` control groups before it does anything else.
    """

    id: Identifier
    memory_bytes: ByteCount
    cpu_ms: Milliseconds
    processes: Count
    template: Identifier = 0
    forkable: bool = False
    is_fork: bool = False
    groups: Annotated[int, Meta(ge=0, le=GROUPS_MAX)] = 0


class LowerLimits(Struct, frozen=True, tag=3):
    """A request to lower the limits of child ``id``, which has not started its task."""

    id: Identifier
    memory_bytes: ByteCount
    cpu_ms: Milliseconds
    processes: Count


class PinChild(Struct, frozen=True, tag=8):
    """A request to let child ``id``, which has not started its task, run on these processors alone."""

    id: Identifier
    processors: Annotated[tuple[Count, ...], Meta(min_length=1, max_length=limits.PINNED_PROCESSORS_MAX)]


class CreateTemplate(Struct, frozen=True, tag=5):
    """A request to create child ``id`` as a template, which has not loaded its modules."""

    id: Identifier
    memory_bytes: ByteCount


class LoadTemplate(Struct, frozen=True, tag=6):
    """A request to load modules in template ``id``, and to call ``warm_up`` (``module:function``) then."""

    id: Identifier
    modules: _Paths
    warm_up: Text = ""


class CancelFork(Struct, frozen=True, tag=7):
    """The daemon waits no more for the child ``id``, a fork of a session."""

    id: Identifier


class ZygoteReady(Struct, frozen=True, tag=10):
    """The zygote is set up; its view contains ``trees``."""

    trees: _Paths


class SetupFailed(Struct, frozen=True, tag=11):
    """The zygote cannot be set up and ends."""

    reason: Message


class ChildCreated(Struct, frozen=True, tag=12):
    """Child ``id`` exists; ``pid`` is its process id as the daemon sees it."""

    id: Identifier
    pid: ProcessId


class CreateFailed(Struct, frozen=True, tag=13):
    """Child ``id`` could not be created."""

    id: Identifier
    reason: Message


class LimitsLowered(Struct, frozen=True, tag=14):
    """The answer to LowerLimits and PinChild; ``reason`` is empty for success."""

    id: Identifier
    reason: Message = ""


class ChildExited(Struct, frozen=True, tag=15):
    """Child ``id`` was reaped, with its wait status, CPU time in ms, and peak memory in bytes.

    ``refused_call`` is the system call that the sandbox killed it for, if the kernel's log names it. Without
    ``has_ended`` it is a runtime whose container did not report the end of the task.
    """

    id: Identifier
    status: Annotated[int, Meta(ge=0, le=2**16 - 1)]
    cpu_ms: Milliseconds
    refused_call: Text = ""
    memory_bytes: ByteCount = 0
    has_ended: bool = True


class TemplateLoaded(Struct, frozen=True, tag=16):
    """The answer to LoadTemplate; ``reason`` is empty for success. A template sends it to its supervisor."""

    id: Identifier
    reason: Message = ""


ToZygote: TypeAlias = (
    ZygoteModules
    | ZygoteSetup
    | CreateChild
    | LowerLimits
    | PinChild
    | CreateTemplate
    | LoadTemplate
    | CancelFork
)
FromZygote: TypeAlias = (
    ZygoteReady | SetupFailed | ChildCreated | CreateFailed | LimitsLowered | ChildExited | TemplateLoaded
)
ToTemplate: TypeAlias = LoadTemplate | CreateChild
"""``CreateChild`` has three descriptors: a socket to the supervisor, the task's socket, and its console."""

encode: Final = msgspec.msgpack.Encoder().encode
decode_to_zygote: Final = msgspec.msgpack.Decoder(ToZygote).decode
decode_from_zygote: Final = msgspec.msgpack.Decoder(FromZygote).decode
decode_to_template: Final = msgspec.msgpack.Decoder(ToTemplate).decode
decode_from_template: Final = msgspec.msgpack.Decoder(TemplateLoaded).decode

"""Keeps the far end of a virtual cable from sending frames that are longer than its MTU.

The other end of a veth pair passes segments of up to 64 KiB uncut, which is its default, because no hardware
follows that would cut them. A packet socket then gets frames that are longer than its places. The kernel
switches that off at the far end, in whichever namespace it is, while a program for XDP is attached to this
end (``veth_fix_features``). So a program that passes every frame on is attached while a function runs.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from typing import Final

from dios.errors import InvalidError, NotPermittedError
from dios.sprayer.linux import bpf_calls, ebpf
from dios.sprayer.linux.offloads import driver
from dios.sprayer.linux.packet_socket import interface

_log: Final = logging.getLogger(__name__)

_PASS: Final = 2
REMEDY: Final = "ethtool -K DEV tx off tso off gso off"
"""The command for the far end of a virtual cable, where the kernel accepts no program here."""


@contextlib.contextmanager
def within_mtu(names: Sequence[str]) -> Iterator[list[str]]:
    """Keep frames from the far ends of virtual cables within the MTU; yield interfaces where this failed.

    Their frames may be longer than a place, and are then dropped and counted as ``cut``. A warning has the
    command that prevents it.
    """
    with contextlib.ExitStack() as stack:
        failed = []
        for name in names:
            if driver(name) != "veth":
                continue
            why = _attach(name, stack)
            if why:
                failed.append(name)
                _log.warning(
                    "longer frames than the MTU may come from the far end of a virtual cable, and are "
                    "dropped; run `%s` there",
                    REMEDY,
                    extra={"interface": name, "why": why},
                )
        yield failed


def _attach(name: str, stack: contextlib.ExitStack) -> str:
    """Attach the program until the end of the context; return why it is impossible, or ""."""
    text = ebpf.assemble([ebpf.calculate("move", ebpf.EbpfRegister.R0, _PASS), ebpf.leave()])
    try:
        program = bpf_calls.load(text)
        try:
            file, native = bpf_calls.link(program, interface(name).index, name)
        finally:
            os.close(program)
    except (InvalidError, NotPermittedError) as error:
        return error.message
    if not native:
        os.close(file)
        return "the driver accepts no program for XDP with this MTU"
    stack.callback(os.close, file)
    return ""

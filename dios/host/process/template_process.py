"""The process of a template: it loads modules in a sandbox, and then forks sessions, which share its memory.

It is confined before it loads the first module, because nobody has read the modules.
``dios.host.process.template_supervisor`` believes nothing that comes from here. A session is forked as a
child of the supervisor, and is locked down like any pure task. It has no way to its template.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Final, NoReturn

from dios import limits
from dios.host.confinement import linux_calls, lockdown, policy
from dios.host.process.zygote_messages import (
    CreateChild,
    LoadTemplate,
    TemplateLoaded,
    decode_to_template,
    encode,
)

DESCRIPTORS_OF_SESSION: Final = 3
GO: Final = b"g"
STARTED: Final = b"s"

REASON_CHARS_MAX: Final = 1_000
"""The reason of a failed start; more is cut."""

_ONE_THREAD: Final = {
    **dict.fromkeys(
        ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
    ),
    "_RJEM_MALLOC_CONF": "background_thread:false",
}


def serve(
    prepared: lockdown.LockdownState,
    fail: Callable[[BaseException, int], NoReturn],
    run: Callable[[], NoReturn],
) -> NoReturn:
    """Load the modules that the supervisor names, then fork a session for each of its orders.

    ``fail`` and ``run`` end a session: after an error in its lock-down, and as its program.
    """
    # The descriptor of the ruleset is closed. Sessions inherit the rules themselves.
    prepared.rules = -1
    link = socket.socket(fileno=lockdown.SOCKET)
    order = decode_to_template(link.recv(limits.ZYGOTE_MESSAGE_BYTES_MAX) or _end())
    if not isinstance(order, LoadTemplate):
        _end()
    reason = load(order.modules, order.warm_up)
    link.send(encode(TemplateLoaded(order.id, reason)))
    if reason:
        _end()
    gc.collect()
    gc.freeze()
    while True:
        # A module may have made the link one that does not wait.
        select.select([link], [], [])
        data, descriptors, _, _ = socket.recv_fds(
            link, limits.ZYGOTE_MESSAGE_BYTES_MAX, DESCRIPTORS_OF_SESSION
        )
        order = decode_to_template(data or _end())
        if isinstance(order, CreateChild) and len(descriptors) == DESCRIPTORS_OF_SESSION:
            _fork(prepared, order, descriptors, fail, run)
        for number in descriptors:
            os.close(number)


def load(modules: tuple[str, ...], warm_up: str = "") -> str:
    """Import modules, and call ``warm_up``. Return the reason if that fails, or an empty text."""
    os.environ.update(_ONE_THREAD)
    try:
        for name in modules:
            try:
                importlib.import_module(name)
            except BaseException as error:  # noqa: BLE001 - a module may raise anything, SystemExit included
                return f"cannot import {name}: {_last_line(error)}"[:REASON_CHARS_MAX]
        if warm_up:
            module, _, function = warm_up.partition(":")
            try:
                getattr(sys.modules[module], function)()
            except BaseException as error:  # noqa: BLE001 - modules may have changed what it uses
                return f"cannot run a session: {_last_line(error)}"[:REASON_CHARS_MAX]
    finally:
        for name in _ONE_THREAD:
            os.environ.pop(name, None)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    return ""


def _last_line(error: BaseException) -> str:
    try:
        lines = "".join(traceback.format_exception_only(error)).strip().splitlines()
        return lines[-1] if lines else type(error).__name__
    except BaseException:  # noqa: BLE001 - the text of an exception is code of the module
        return "an exception that cannot be described"


def _fork(
    prepared: lockdown.LockdownState,
    order: CreateChild,
    descriptors: list[int],
    fail: Callable[[BaseException, int], NoReturn],
    run: Callable[[], NoReturn],
) -> None:
    wait, task_socket, console = descriptors
    try:
        flags = policy.CLONE_OF_FORKABLE if order.forkable else prepared.flags
        pid = linux_calls.clone_sibling(flags, prepared.tid_address)
    except OSError as error:
        os.write(wait, linux_calls.describe(error).encode())
        return
    if pid == 0:
        try:
            linux_calls.prctl(linux_calls.PR_SET_PDEATHSIG, signal.SIGKILL)
            os.write(wait, STARTED)
            # Until the supervisor has mounted the private folder. It has ended if nothing comes.
            _wait_to_go_on(wait)
            if order.forkable:
                # Its modules come later, and a process with threads cannot be forked.
                os.environ.update(_ONE_THREAD)
                lockdown.forkable_session(
                    prepared, order, task_socket, console, lambda listener: _hand_over(wait, listener)
                )
            else:
                lockdown.session(prepared, order, task_socket, console)
        except BaseException as error:  # noqa: BLE001 - after any failure this child must not go on
            fail(error, console)
        gc.enable()
        run()


def _wait_to_go_on(wait: int) -> None:
    if os.read(wait, len(GO)) != GO:
        _end()


def _hand_over(wait: int, listener: int) -> None:
    """Let the supervisor take the listener of the own filter."""
    os.write(wait, str(listener).encode())
    _wait_to_go_on(wait)


def _end() -> NoReturn:
    os._exit(0)

"""The recorder of this process, if there is one.

``DIOS_TRACE`` starts it: the path of a folder, or ``otlp``. Without a recorder a call costs one comparison.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dios.client.tracing.contexts import SpanContext, current, read_traceparent
from dios.errors import InvalidError
from dios.installation import extra_command

if TYPE_CHECKING:
    from dios.client.tracing.recorder import OpenSpan, Recorder, Sink

VARIABLE: Final = "DIOS_TRACE"
TRACEPARENT: Final = "TRACEPARENT"
OTLP: Final = "otlp"
RATIO: Final = "OTEL_TRACES_SAMPLER_ARG"

recorder: Recorder | None = None
_asked = False


def start_by_environment() -> None:
    """Start a recorder if the environment of this process asks for one; once, and not again."""
    global _asked
    if _asked:
        return
    _asked = True
    wanted = os.environ.get(VARIABLE)
    if not wanted:
        return
    if wanted == OTLP:
        try:
            from dios.client.tracing.otlp import otlp_sink  # noqa: PLC0415 - needs an extra
        except ModuleNotFoundError as error:
            raise InvalidError(
                f"cannot trace: {VARIABLE} is {OTLP}, and {error.name} is not installed: "
                f"{extra_command('otel')}"
            ) from None
        start(otlp_sink(), ratio=_ratio())
        return
    from dios.client.tracing.trace_file import lines_sink  # noqa: PLC0415 - rarely needed

    if not wanted.startswith("/"):
        raise InvalidError(f"cannot trace: {VARIABLE} is {wanted!r}. Set it to {OTLP!r}, or unset it.")
    start(lines_sink(Path(wanted)), ratio=_ratio())


def start(sink: Sink, *, ratio: float = 1.0) -> Recorder:
    """Record the calls of this process from now on, as a part of the TRACEPARENT in its environment.

    ``ratio`` is the part of the traces without a parent that is recorded, 0 to 1.
    """
    from dios.client.tracing.recorder import Recorder  # noqa: PLC0415 - most programs need none

    root = read_traceparent(os.environ.get(TRACEPARENT, ""))
    new_recorder = Recorder(sink, root=root, ratio=ratio)
    begin_recording(new_recorder)
    return new_recorder


def begin_recording(new_recorder: Recorder) -> None:
    """Record the calls of this process with this recorder from now on."""
    global recorder
    recorder = new_recorder
    atexit.register(new_recorder.flush)
    os.register_at_fork(after_in_child=new_recorder.forget)


def stop() -> None:
    """Give the sink the last spans, and record nothing any more."""
    global recorder
    if recorder is not None:
        atexit.unregister(recorder.flush)
        recorder.flush()
    recorder = None


@contextmanager
def span(name: str) -> Iterator[OpenSpan | None]:
    """Record the body as a span of this process; the calls in it are its parts."""
    start_by_environment()
    active = recorder
    opened = None if active is None else active.begin(name)
    if active is None or opened is None:
        yield None
        return
    token = current.set(opened.context)
    failed = True
    try:
        yield opened
        failed = False
    finally:
        current.reset(token)
        active.end(opened, failed=failed)


def begin(name: str, parent: OpenSpan | None = None) -> OpenSpan | None:
    """Begin a span that another function ends. Return None if nothing is recorded."""
    if recorder is None:
        return None
    return recorder.begin(name, None if parent is None else parent.context)


def end(opened: OpenSpan | None, *, failed: bool = False) -> None:
    """End a span of ``begin``."""
    if opened is not None and recorder is not None:
        recorder.end(opened, failed=failed)


def context_for_others() -> SpanContext | None:
    """Return the context to hand to tasks: of the present span, else of the environment; None without one."""
    return current.get() or read_traceparent(os.environ.get(TRACEPARENT, ""))


def _ratio() -> float:
    text = os.environ.get(RATIO, "1")
    try:
        ratio = float(text)
    except ValueError:
        ratio = -1.0
    if not 0 <= ratio <= 1:
        raise InvalidError(f"cannot trace: {RATIO} is {text[:40]!r}. Set it to a number from 0 to 1.")
    return ratio

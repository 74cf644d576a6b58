"""Records the calls of this process, which is a traced task, and returns the spans at its end.

``task_spans`` has their form. The recorder keeps the first TASK_SPANS_MAX spans that end; later ones are
dropped. A task that is killed, or that may not write where its starter reads, returns none.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Sequence
from contextlib import suppress

from dios import limits
from dios.client.sync.node import connect
from dios.client.tracing import active
from dios.client.tracing.contexts import SpanContext
from dios.client.tracing.recorder import Recorder, SpanRecord
from dios.client.tracing.task_spans import encode_spans
from dios.errors import DiosError
from dios.wire.messages import Reference


def record_until_the_end(context: SpanContext, output: Reference) -> None:
    """Record the calls of this task as parts of ``context``, and write the spans to ``output`` at its end."""
    begun_ns, process = time.time_ns(), os.getpid()
    kept: list[SpanRecord] = []

    def keep(spans: Sequence[SpanRecord]) -> None:
        kept.extend(spans[: limits.TASK_SPANS_MAX - len(kept)])

    def give_back() -> None:
        # A forked child is another process, and has no connection.
        if os.getpid() != process:
            return
        active.stop()
        with suppress(DiosError, OSError):
            data = encode_spans(kept, context.span, begun_ns)
            if kept and len(data) <= limits.TASK_SPANS_BYTES_MAX:
                connect().handle(output).write_bytes(data)

    # Functions of the program at its exit are later registered, and so called earlier.
    atexit.register(give_back)
    active.begin_recording(Recorder(keep, root=context))

"""``dios trace``: records what the calls of a command took, in the client and in nodes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import typer

from dios.cli.common.application import CommandApplication
from dios.cli.common.options import argument, option
from dios.cli.common.output import RUN_FAILED, counted
from dios.cli.common.results import OutputOptions
from dios.cli.common.rows import Row
from dios.errors import InvalidError

app: Final = CommandApplication(
    no_args_is_help=True, help="Traces: what the calls of a command took, and where."
)


class TraceRow(Row):
    """A file of trace events, the number of its spans, the id of the trace, and the command's exit status."""

    file: str
    spans: int
    trace: str
    status: int


@app.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    examples="dios trace record -- dios put data.csv --group analytics\n"
    "dios trace record -o job.json -- python job.py",
    failure_status=RUN_FAILED,
    json=TraceRow,
)
def record(
    command: list[str] = argument("-- COMMAND...", "The command to run."),
    *,
    output: Path = option(
        "-o --output FILE", "The file to write.", default=Path("trace.json"), dir_okay=False
    ),
    common: OutputOptions,
) -> None:
    """Run a command, and write what its calls took to a file for Perfetto or chrome://tracing.

    The file has the spans of every process of the command that connects to a node as a user's program, with
    the parts of each call in the node, in its store and in other nodes. No collector is needed. Open it at
    ui.perfetto.dev, or in another viewer of Chrome's trace events. The exit status is that of the command.
    """
    from dios.client.tracing import active  # noqa: PLC0415 - only this command needs all of it
    from dios.client.tracing.contexts import read_traceparent  # noqa: PLC0415 - as above
    from dios.client.tracing.recorder import Recorder, SpanRecord  # noqa: PLC0415 - as above
    from dios.client.tracing.trace_file import read_lines, write_trace  # noqa: PLC0415 - as above

    spans: list[SpanRecord] = []
    with tempfile.TemporaryDirectory(prefix="dios-trace-") as folder:
        parent = read_traceparent(os.environ.get(active.TRACEPARENT, ""))
        recorder = Recorder(spans.extend)
        whole = recorder.begin(command[0], parent if parent is not None and parent.sampled else None)
        if whole is None:
            raise InvalidError("cannot record: the trace has no context")
        environment = {
            **os.environ,
            active.VARIABLE: folder,
            active.TRACEPARENT: whole.context.traceparent,
        }
        environment.pop(active.RATIO, None)
        status = _run(command, environment)
        recorder.end(whole, failed=status != 0)
        recorder.flush()
        spans += read_lines(Path(folder))
    count = write_trace(output, spans)
    trace = whole.context.trace.hex()
    common.print_row(
        TraceRow(str(output), count, trace, status),
        f"{output}: {counted(count, 'span')} of trace {trace}. Open it at https://ui.perfetto.dev",
    )
    raise typer.Exit(status)


def _run(command: list[str], environment: dict[str, str]) -> int:
    """Run the command and return its exit status, as a shell gives it."""
    try:
        with subprocess.Popen(command, env=environment) as process:
            try:
                status = process.wait()
            except BaseException:
                process.terminate()
                raise
    except FileNotFoundError:
        raise InvalidError(f"cannot run {command[0]!r}: there is no such command") from None
    sys.stdout.flush()
    return 128 - status if status < 0 else status

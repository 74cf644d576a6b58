"""Runs the process that serves a node's metrics, and restarts it when it ends."""

from __future__ import annotations

import importlib.util
import logging
import subprocess
import sys
from typing import Final

import trio

from dios import limits
from dios.installation import extra_command
from dios.node.exporter_places import REPORTED
from dios.node.settings import Settings

_MODULE: Final = "dios.node.metrics.exporter"

_log: Final = logging.getLogger(__name__)


async def keep_exporter(settings: Settings) -> None:
    """Run the exporter of the node's metrics with growing pauses between restarts, until cancelled.

    The process ends with the node, however that ends: it reads a pipe of which the node has the other end.
    """
    if importlib.util.find_spec("prometheus_client") is None:
        _log.warning(
            "no metrics are served",
            extra={"why": f"prometheus_client missing: {extra_command('metrics')}"},
        )
        return
    tls = () if settings.metrics_tls is None else settings.metrics_tls
    command = [sys.executable, "-P", "-m", _MODULE, str(settings.socket), str(settings.metrics)]
    command += [str(path) for path in tls]
    command += [f"--uid={uid}" for uid in settings.metrics_uids]
    pause_s = limits.EXPORTER_RESTART_MS_MIN / 1000
    while True:
        began = trio.current_time()
        process = await trio.lowlevel.open_process(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        try:
            why = await _last_line(process.stderr)
            await process.wait()
        finally:
            process.kill()
        if trio.current_time() - began > limits.EXPORTER_STABLE_MS / 1000:
            pause_s = limits.EXPORTER_RESTART_MS_MIN / 1000
        _log.warning("the exporter of metrics ended and is restarted", extra={"why": why, "in_s": pause_s})
        await trio.sleep(pause_s)
        pause_s = min(pause_s * 2, limits.EXPORTER_RESTART_MS_MAX / 1000)


async def _last_line(errors: trio.abc.ReceiveStream | None) -> str:
    """Read until the end, log the lines with REPORTED, and return the last of the others."""
    last = rest = ""
    if errors is not None:
        async for part in errors:
            *lines, rest = (rest + part.decode(errors="replace")).split("\n")
            rest = rest[-limits.EXPORTER_ERROR_BYTES_MAX :]
            for line in lines:
                if line.startswith(REPORTED):
                    _log.warning("the exporter of metrics reports", extra={"why": line[len(REPORTED) :]})
                else:
                    last = line.strip()[-limits.EXPORTER_ERROR_BYTES_MAX :] or last
    return rest.strip() or last

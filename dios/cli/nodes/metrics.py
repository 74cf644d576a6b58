"""The command ``dios metrics``: a node's numbers, once or as a server for Prometheus."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Final

import typer

from dios.cli.common.application import CommandApplication
from dios.cli.common.context import opened
from dios.cli.common.extras import needing_extra
from dios.cli.common.options import option
from dios.cli.common.output import say, write_json
from dios.cli.common.results import CommonOptions
from dios.cli.common.rows import Row
from dios.errors import InvalidError
from dios.node.exporter_places import TlsFiles, place_of, require_protected
from dios.node.metrics.family import Reading
from dios.node.metrics.registry import FAMILIES, read_all

app: Final = CommandApplication()


class MetricRow(Row):
    """A value of a metric, or a histogram: pairs of an upper bound, null for the last, and a number."""

    metric: str
    labels: dict[str, str]
    value: float
    buckets: list[tuple[float | None, float]]


@app.command(examples="dios metrics\ndios metrics --listen 127.0.0.1:9464", json=[MetricRow])
def metrics(
    *,
    listen: str | None = option("--listen HOST:PORT", "Serve the metrics there over HTTP until Ctrl-C."),
    certificate: Path | None = option("--certificate FILE", "Certificate of this server; with --listen."),
    key: Path | None = option("--key FILE", "Private key of the certificate."),
    clients: Path | None = option("--clients FILE", "Authority of the clients that may read the metrics."),
    uid: list[int] | None = option(
        "--uid UID", "A further user who may read them on loopback; more than once."
    ),
    common: CommonOptions,
) -> None:
    """Show the metrics of a node, its scheduler and its network functions, for Prometheus.

    Calls are counted from the first reading on, and as long as somebody reads at least every ten minutes.
    The setting `metrics` lets the node itself start a server of this kind. Only the node's own user and root
    may read metrics (docs/observe.md#metrics).
    """
    tls = _tls_files(certificate, key, clients)
    if listen is not None:
        _serve(common.node, listen, tls, uid or [])
        return
    if tls is not None or uid:
        raise InvalidError(
            f"cannot use {'TLS' if uid is None else '--uid'}: nothing is served. Add --listen HOST:PORT."
        )
    with opened(common.node) as place:
        readings = read_all(place.node)
    if common.as_json:
        write_json([_described(reading) for reading in readings if reading.metric in FAMILIES])
        return
    with needing_extra("metrics", "metrics in the format of Prometheus"):
        from dios.node.metrics.text import text_of  # noqa: PLC0415 - needs an extra
    typer.echo(text_of(readings), nl=False)


def _described(reading: Reading) -> MetricRow:
    scale = FAMILIES[reading.metric].scale
    # JSON has no infinity.
    buckets: list[tuple[float | None, float]] = [
        (None if bound == float("inf") else bound * scale, count) for bound, count in reading.buckets
    ]
    return MetricRow(reading.metric, dict(reading.labels), reading.value * scale, buckets)


def _tls_files(certificate: Path | None, key: Path | None, clients: Path | None) -> TlsFiles | None:
    given = [path for path in (certificate, key, clients) if path is not None]
    if not given:
        return None
    if certificate is None or key is None or clients is None:
        raise InvalidError("cannot use TLS: give all of --certificate, --key and --clients.")
    return TlsFiles(certificate, key, clients)


def _serve(node: str | None, listen: str, tls: TlsFiles | None, users: list[int]) -> None:
    place = place_of(listen)
    require_protected(place, tls, users)
    with opened(node) as context:
        context.node.read_table("metrics")  # a node that cannot be read is better reported now
    with needing_extra("metrics", "servers of metrics"):
        from dios.node.metrics.exporter import start  # noqa: PLC0415 - needs an extra
    stop = start(node, place, tls, users)
    say(f"metrics are served at http{'' if tls is None else 's'}://{place}/metrics; Ctrl-C ends this")
    try:
        signal.pause()
    finally:
        stop()

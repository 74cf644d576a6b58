"""Sends spans to a collector by OTLP over HTTP, with the exporter of OpenTelemetry (extra ``otel``).

``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_EXPORTER_OTLP_HEADERS`` and the other variables of OpenTelemetry say
where and how. A thread of its own sends them, and drops spans while the collector does not keep up.
"""

from __future__ import annotations

import atexit
import functools
import os
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from dios.client.tracing.recorder import CLIENT, TASK, Sink, SpanRecord


def otlp_sink() -> Sink:
    """Return a sink that sends spans to the collector which the environment names."""
    processor = BatchSpanProcessor(OTLPSpanExporter())
    # Reads further attributes from the environment, with threads that no process can start at its end.
    base = Resource.create()
    # Registered before the recorder's last flush is, and so called after it.
    atexit.register(processor.shutdown)

    def send(spans: Sequence[SpanRecord]) -> None:
        for span in spans:
            processor.on_end(_readable(span, resource_of(span.place)))

    @functools.lru_cache(maxsize=256)
    def resource_of(place: str) -> Resource:
        if place.startswith(TASK):
            name = place.removeprefix(TASK)
            return base.merge(Resource({"service.name": "dios-task", "service.instance.id": name}))
        if place != CLIENT:
            return base.merge(Resource({"service.name": "dios-node", "service.instance.id": place}))
        own = os.environ.get("OTEL_SERVICE_NAME", "dios-client")
        return base.merge(Resource({"service.name": own}))

    return send


def _context(trace: str, span: str) -> SpanContext:
    return SpanContext(int(trace, 16), int(span, 16), is_remote=False, trace_flags=TraceFlags(1))


def _readable(span: SpanRecord, resource: Resource) -> ReadableSpan:
    return ReadableSpan(
        span.name,
        context=_context(span.trace, span.span),
        parent=_context(span.trace, span.parent) if span.parent else None,
        resource=resource,
        kind=SpanKind.CLIENT if span.place == CLIENT else SpanKind.SERVER,
        status=Status(StatusCode.ERROR if span.failed else StatusCode.UNSET),
        start_time=span.start_ns,
        end_time=span.start_ns + span.length_ns,
        instrumentation_scope=InstrumentationScope("dios"),
    )

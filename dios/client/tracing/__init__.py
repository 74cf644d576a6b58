"""Traces of the calls of this process, and of what they took in nodes.

Read in this order:

- ``contexts``: the context of a span, and its text in W3C's ``traceparent``.
- ``recorder``: begins and ends spans, and gives them to a sink.
- ``active``: the recorder of this process, if there is one, and how the environment starts it.
- ``task_spans``: the spans that a task returns, which are not trusted; ``task_recorder`` records them in the
  task, and ``started_tasks`` adds them to those of the program that started it.
- ``trace_file``: spans as lines of a file, and as a file of trace events for Perfetto.
- ``otlp``: sends spans to a collector; needs the extra ``otel``.
"""

"""Deliver events to tasks, on this node or on another (§4.5.3)."""

from __future__ import annotations

from msgspec.structs import replace

from dios.core.calls import flows
from dios.core.model import disclosure
from dios.core.model.records import Holder, LocalHolder
from dios.core.remote import requests
from dios.core.step import Step
from dios.wire import dcp, messages


def notify(step: Step, task: Holder, event: messages.SelfEvent) -> None:
    """Queue an event for a task of this node, or send it to the node of a remote task."""
    if isinstance(task, LocalHolder):
        if isinstance(event, messages.ChildEnded) and event.status.secrecy:
            # An event is read without a check: what the child's program chose is in its status alone.
            event = replace(event, status=disclosure.row_for(task, event.status))
        task.push_event(event)
        step.changed(task.object)
        return
    body = dcp.DeliverEvent(task.home_id, event)
    if isinstance(event, messages.ChildEnded):
        peer = step.require_cluster().peer(task.home)
        if event.status.secrecy and not flows.knows_labels(peer):
            body = dcp.DeliverEvent(task.home_id, replace(event, status=disclosure.concealed(event.status)))
        requests.notify_reliably(step, peer, event.object, body)
    else:
        # A lost event of another kind has no lasting effect: reference reconciliation corrects it.
        requests.notify_node(step, task.home, body)

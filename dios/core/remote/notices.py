"""Events for tasks, wherever they are (§4.5.3)."""

from __future__ import annotations

from dios.core.model.records import Holder, LocalHolder
from dios.core.remote import requests
from dios.core.step import Step
from dios.wire import dcp, messages


def notify(step: Step, task: Holder, event: messages.SelfEvent) -> None:
    """Put an event before a task of this node, or send it to the node of a remote task."""
    if isinstance(task, LocalHolder):
        task.push_event(event)
        step.changed(task.object)
        return
    body = dcp.DeliverEvent(task.id, event)
    if isinstance(event, messages.ChildEnded):
        peer = step.require_cluster().peer(task.home)
        requests.notify_reliably(step, peer, event.object, body)
    else:
        # Everything else that the node must know comes out when the nodes compare what they hold.
        requests.notify_node(step, task.home, body)

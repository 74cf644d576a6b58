"""Checks of a coordinator's answers by the schemas of the commands that print them."""

from __future__ import annotations

import json

from tests.support.node.command_user import require_schema

COMMANDS = {
    "status": "sched status",
    "models": "sched models",
    "set-model": "sched set-model",
    "settings": "sched settings",
    "set": "sched set",
    "reset": "sched reset",
    "history": "sched history",
    "explain": "explain",
    "shares": "shares",
}


def require_described(question: object, answer: dict[str, object]) -> None:
    """Check an answer without an error against the schema of the command that prints it, if one does."""
    asked = question.get("ask") if isinstance(question, dict) else None
    if answer["ok"] and asked in COMMANDS:
        require_schema(f"dios {COMMANDS[asked]}", json.dumps(answer))

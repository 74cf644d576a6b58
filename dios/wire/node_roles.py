"""The roles of nodes: one table of the rights that each role gives at other nodes.

The certificate of a node has its roles, so that no message or program of the node can change them. The flags
of commands, the checks of other nodes, ``dios doctor`` and docs/clusters.md follow from the table: a new role
is one row.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from dios.errors import InvalidError, InvariantError


class NodeRight(enum.Flag):
    """The acts at other nodes that need a role."""

    NONE = 0
    SIGN = enum.auto()
    """Admit machines, and sign and renew the certificates of nodes."""
    REMOVE = enum.auto()
    """Remove nodes by statements."""
    ADMINISTER = enum.auto()
    """Drain and label nodes, and start limbo tasks where they are let in, as the nodes' own user."""
    SCHEDULE = enum.auto()
    """Attend the queues of nodes, place runs, and set rates and quotas, as the nodes' own user."""
    KEEP = enum.auto()
    """Hold durable copies of other nodes' objects: kept replicas, and lists of the files of groups."""
    BORDER = enum.auto()
    """Speak for the cluster at the borders of trusted clusters."""


class NodeRole(enum.Flag):
    """The roles of a node. Several are the union of their rights."""

    AUTHORITY = enum.auto()
    MEMBER = enum.auto()
    WORKER = enum.auto()
    SCHEDULER = enum.auto()
    KEEPER = enum.auto()
    BORDER = enum.auto()
    RUNNER = enum.auto()

    def __str__(self) -> str:
        """Return the words of the roles with commas between them, as in certificates."""
        return ",".join(_word(role) for role in self)

    @property
    def rights(self) -> NodeRight:
        """The rights of all these roles together."""
        rights = NodeRight.NONE
        for role in self:
            rights |= ROLES[role].rights
        return rights

    @property
    def text(self) -> str:
        """The descriptions of the roles, for people."""
        return "; ".join(ROLES[role].text for role in self)


class RoleRow(NamedTuple):
    """The rights of a role, and its description, which follows the name of a node and a comma."""

    rights: NodeRight
    text: str


_MEMBER: Final = (
    NodeRight.REMOVE | NodeRight.ADMINISTER | NodeRight.SCHEDULE | NodeRight.KEEP | NodeRight.BORDER
)

ROLES: Final[Mapping[NodeRole, RoleRow]] = {
    NodeRole.AUTHORITY: RoleRow(
        _MEMBER | NodeRight.SIGN, "an authority, which admits nodes and administers others"
    ),
    NodeRole.MEMBER: RoleRow(_MEMBER, "a member, which administers others and admits none"),
    NodeRole.WORKER: RoleRow(NodeRight.KEEP | NodeRight.BORDER, "a worker, which administers no other node"),
    NodeRole.SCHEDULER: RoleRow(NodeRight.SCHEDULE, "a scheduler, which may schedule for other nodes"),
    NodeRole.KEEPER: RoleRow(NodeRight.KEEP, "a keeper, which holds kept replicas and lists of files"),
    NodeRole.BORDER: RoleRow(NodeRight.BORDER, "a border, which speaks with trusted clusters"),
    NodeRole.RUNNER: RoleRow(NodeRight.NONE, "a runner, which runs tasks and nothing else"),
}
"""The row of each role."""
if ROLES.keys() != set(NodeRole):  # pragma: no cover - a defect of this module
    raise InvariantError("a role of nodes has no row")


def _word(role: NodeRole) -> str:
    return (role.name or "").lower()


_BY_WORD: Final = {_word(role): role for role in NodeRole}
ROLE_WORDS: Final = tuple(_BY_WORD)
"""The words of the roles, as commands and certificates have them."""


@lru_cache(maxsize=1 << len(ROLE_WORDS))
def roles_of(text: str) -> NodeRole:
    """Return the roles that a text names, with commas between them.

    Raises InvalidError for an unknown word, and for a role whose rights the others have anyway.
    """
    words = text.split(",")
    unknown = [word for word in words if word not in _BY_WORD]
    if unknown or len(set(words)) < len(words):
        raise InvalidError(
            f"{text[:80]!r} names no roles of a node. Give one of {', '.join(ROLE_WORDS)}, or several with "
            "commas between them."
        )
    for word in words:
        rights = NodeRight.NONE
        for other in words:
            rights |= NodeRight.NONE if other == word else ROLES[_BY_WORD[other]].rights
        if len(words) > 1 and ROLES[_BY_WORD[word]].rights in rights:
            raise InvalidError(f"the role {word} adds nothing to the others of {text!r}. Leave it out.")
    roles = NodeRole(0)
    for word in words:
        roles |= _BY_WORD[word]
    return roles


def has_right(roles: str, right: NodeRight) -> bool:
    """Return True if the roles of a text give a right: a node may do what needs it.

    The empty text is that of a node whose certificate was not seen so far. It has no right until it connects.
    """
    return bool(roles) and right in _rights_of(roles)


def may_be_chosen(roles: str, right: NodeRight) -> bool:
    """Return True unless the roles of a text are known to lack a right: a node may be asked to use it.

    A node whose certificate was not seen so far may have any role. Its roles are judged when it connects.
    """
    return not roles or has_right(roles, right)


@lru_cache(maxsize=1 << len(ROLE_WORDS))
def _rights_of(text: str) -> NodeRight:
    return roles_of(text).rights


def refusal(name: str, role: str, right: NodeRight) -> str:
    """Return the sentence that refuses a node an act for which it lacks the right."""
    able = ", ".join(_word(known) for known, row in ROLES.items() if right in row.rights)
    return f"{name} has the role {role} and {_REFUSALS[right]}. Nodes with one of these roles may: {able}"


_REFUSALS: Final[Mapping[NodeRight, str]] = {
    NodeRight.SIGN: "signs no certificates",
    NodeRight.REMOVE: "removes no nodes",
    NodeRight.ADMINISTER: "administers no other node",
    NodeRight.SCHEDULE: "schedules for no other node",
    NodeRight.KEEP: "holds no durable copies for other nodes",
    NodeRight.BORDER: "opens no border",
}
if _REFUSALS.keys() != set(NodeRight):  # pragma: no cover - a defect of this module
    raise InvariantError("a right of nodes has no sentence for its refusal")

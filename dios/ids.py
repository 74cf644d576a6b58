"""NewTypes for every identifier, so that a name is never passed where a reference belongs.

Not for: making identifiers (``dios.core.model.names``) or writing them as text (``dios.wire.nametext``).
"""

from __future__ import annotations

from typing import NewType

Name = NewType("Name", bytes)
"""An external name: 32 bytes, an identifier capability, a secret (thesis §4.3)."""

InternalName = NewType("InternalName", bytes)
"""H(external name of the object || external name of the group): 32 bytes (§4.3.1)."""

ObjectId = NewType("ObjectId", int)
"""A physical object's random 64-bit id, public in every reference to it (§4.5.2)."""

TaskId = NewType("TaskId", int)
"""The object id of a task's own object."""

RefId = NewType("RefId", int)
"""A reference's random 64-bit id; means nothing in another task (§4.5)."""

BufferId = NewType("BufferId", int)
"""A buffer of one task's I/O request; counts up and is never re-used (§4.7)."""

NodeId = NewType("NodeId", int)
"""A node's random 63-bit id, which stands in its certificate; 0 means none."""

PayloadId = NewType("PayloadId", int)
"""Bytes that the host holds for an event, never seen by the core."""

Ticket = NewType("Ticket", int)
"""The place of a batch of store operations in the order of persistence; 0 is always durable."""

Principal = NewType("Principal", str)
"""Who acts: ``uid:1000`` for a person on this machine, ``node`` for the node itself (§3.2.2.1)."""

Ticks = NewType("Ticks", int)
"""Time in the core: nanoseconds as the host's clock told them in an event."""

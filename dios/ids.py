"""A distinct type for each kind of identifier, so that a name is never passed in place of a reference.

``dios.core.model.names`` creates names, ``dios.wire.nametext`` converts them to text.
"""

from __future__ import annotations

from typing import NewType

Name = NewType("Name", bytes)
"""An external name: 32 bytes, an identifier capability, a secret (thesis §4.3)."""

InternalName = NewType("InternalName", bytes)
"""H(external name of the object || external name of the group): 32 bytes (§4.3.1)."""

ObjectId = NewType("ObjectId", int)
"""The random 63-bit id of a physical object, public in every reference to it (§4.5.2)."""

TaskId = NewType("TaskId", int)
"""The object id of a task's own object."""

RefId = NewType("RefId", int)
"""The random 63-bit id of a reference; it has no meaning in another task (§4.5)."""

BufferId = NewType("BufferId", int)
"""The number of a buffer of one task; it counts up and is never re-used (§4.7)."""

NodeId = NewType("NodeId", int)
"""The random 63-bit id of a node, which is in its certificate; 0 means none."""

PayloadId = NewType("PayloadId", int)
"""The key of bytes that the host stores for an event; the core never reads them."""

Ticket = NewType("Ticket", int)
"""The place of a batch of store operations in the order of persistence; 0 is always durable."""

Principal = NewType("Principal", str)
"""The identity on whose behalf a task acts: ``uid:1000`` for a user, ``node`` for the node (§3.2.2.1)."""

Ticks = NewType("Ticks", int)
"""Time in the core in nanoseconds, as given by the host's clock in each event."""

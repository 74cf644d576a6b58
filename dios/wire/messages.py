"""All messages between a task and its node, in one module to import from.

Every message is a MessagePack array whose first element is its tag; ``docs/wire-format.md`` has the tables.
``dios.wire.codec`` frames and validates them.
"""

from __future__ import annotations

from dios.wire.admission import *  # noqa: F403 - a list of all messages would be a second table of them
from dios.wire.calls import *  # noqa: F403 - the same
from dios.wire.fields import *  # noqa: F403 - the same
from dios.wire.rates import *  # noqa: F403 - the same
from dios.wire.replies import *  # noqa: F403 - the same
from dios.wire.requests import *  # noqa: F403 - the same
from dios.wire.scheduling import *  # noqa: F403 - the same

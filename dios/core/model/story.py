"""The newest events of a node that touched a task or an object.

They help to find defects: they say what happened to a thing that is in no table any more. They are no part
of the state: a snapshot does not have them, and no step reads them.
"""

from __future__ import annotations

from collections import deque
from typing import TypeAlias

from dios import limits

StoryEntry: TypeAlias = tuple[int, str, str, str, int]
"""The time, the event or call, the fingerprints of the task and of the object (or empty), and the sequence
number of a call.
"""


class Story(deque[StoryEntry]):
    """The last ``limits.STORY_ENTRIES_MAX`` entries. ``now`` is the time of the present step."""

    def __init__(self) -> None:
        super().__init__(maxlen=limits.STORY_ENTRIES_MAX)
        self.now = 0

    def note(self, event: str, task: str, object_: str) -> None:
        """Add an entry of an event that is no call."""
        self.append((self.now, event, task, object_, 0))

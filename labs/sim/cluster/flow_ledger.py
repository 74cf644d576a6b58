"""The flow of secrets in a simulated cluster: what each value may contain, and what each task knows.

The model is that of the worst program: every task writes everything that it knows into all that it writes,
creates, delegates and reports. Like the promises, this is learnt from requests and answers alone. Labels of
the nodes are compared with it, and never copied into it, so that a defect of the core cannot hide itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol, TypeAlias

from msgspec import Struct

from dios.core.model.secrecy import is_owned
from dios.ids import Principal, TaskId
from dios.wire.types import Permission
from labs.sim.cluster.promises import Key, PromiseLedger
from labs.sim.node.checker import BrokenPromiseError

Tags: TypeAlias = frozenset[str]
NOTHING: Final[Tags] = frozenset()
TELLING: Final = 7
"""The exit code of a task that knows a secret. All other tasks exit with 0."""


class Holder(Protocol):
    """A session or task."""

    @property
    def task(self) -> TaskId:
        """Its id."""

    @property
    def label(self) -> str:
        """The unique label of its start; empty for a session."""


class _Content(Struct):
    """The tags of a value, and those that its writer knew and could release when it requested the write.

    ``writer`` is the task that is excused if it gets the right to release more before the value is stored.
    """

    tags: Tags
    released: Tags = NOTHING
    writer: Holder | None = None


class FlowLedger:
    """The tags of each value, the knowledge of each task, and the labels that objects were created with."""

    def __init__(self, promises: PromiseLedger) -> None:
        self._promises: Final = promises
        self._contents: Final[dict[bytes, _Content]] = {}
        self._labels: Final[dict[int, Tags]] = {}
        self._by_key: Final[dict[Key, Tags]] = {}
        self._sessions: Final[dict[int, Principal]] = {}
        self._knows: Final[dict[int, set[str]]] = {}
        self._starting: Final[dict[str, Tags]] = {}
        self._told_at_end: Final[dict[str, Tags]] = {}
        self.learned = self.released = self.confined = 0

    # -- sessions and tasks ---------------------------------------------------------------------------
    def open(self, task: TaskId, principal: Principal) -> None:
        """Record a session of a user."""
        self._sessions[task] = principal

    def begin(self, who: Holder) -> None:
        """Record that a task has started: it knows what its parent knew."""
        self._knows.setdefault(who.task, set()).update(self._starting.pop(who.label, NOTHING))

    def start(self, parent: Holder, label: str, program: Tags) -> None:
        """Record a request for a start: the child knows what its parent and its program know."""
        self._starting[label] = self.known(parent) | program

    def end(self, who: Holder) -> int:
        """Record the end of a task; return its exit code."""
        told = self.told(who)
        if told:
            self._told_at_end[who.label] = told
        return TELLING if told else 0

    def told_at_end(self, label: str) -> Tags:
        """Return what the exit code of a task says."""
        return self._told_at_end.get(label, NOTHING)

    def principal(self, task: int) -> Principal | None:
        """Return the user of a session, or None for a task."""
        return self._sessions.get(task)

    # -- what they know --------------------------------------------------------------------------------
    def known(self, who: Holder) -> Tags:
        """Return the tags of all that a task has learned."""
        return frozenset(self._knows.get(who.task, NOTHING))

    def told(self, who: Holder) -> Tags:
        """Return the tags of what a task writes without the right to release it."""
        known = self.known(who)
        return known - self._releasable(who) if known else NOTHING

    def still_told(self, who: Holder, tags: Tags) -> Tags:
        """Return the tags without those that the task got the right to release meanwhile."""
        return tags - self._releasable(who) if tags else NOTHING

    def _releasable(self, who: Holder) -> Tags:
        """Return the tags for which a task may have a right to declassify that was not taken back."""
        tags: set[str] = set()
        for target, label in self._labels.items():
            key = self._promises.keys.get(target)
            if key is not None and not label <= tags:
                mask = self._promises.mask_of((who.task, who.label), key, quiet=True)
                if mask & Permission.DECLASSIFY:
                    tags |= label
        return frozenset(tags)

    def learn(self, task: int, tags: Tags, shown: Iterable[str] | None) -> None:
        """Record that a session or task has received something with these tags.

        ``shown`` is the label that the core gives the task now; None if that cannot be known.
        """
        if not tags:
            return
        self.learned += 1
        principal = self._sessions.get(task)
        if principal is not None:
            foreign = [tag for tag in sorted(tags) if not is_owned(tag, principal)]
            if foreign:
                raise BrokenPromiseError(f"a session of {principal} has received {', '.join(foreign)}")
            return
        known = self._knows.setdefault(task, set())
        known |= tags
        if shown is not None and not known <= set(shown):
            lacking = ", ".join(sorted(known - set(shown)))
            raise BrokenPromiseError(f"task {task} knows {lacking}, which is not in its label")

    # -- objects and values ----------------------------------------------------------------------------
    def label_of(self, target: int) -> Tags:
        """Return the label of an object."""
        return self._labels.get(target, NOTHING)

    def label_of_key(self, key: Key) -> Tags:
        """Return the label of all objects with a name."""
        return self._by_key.get(key, NOTHING)

    def name(self, key: Key, label: Iterable[str]) -> None:
        """Record the label of an object that was created."""
        self._by_key[key] = frozenset(label)

    def show(self, target: int, label: Iterable[str]) -> None:
        """Record or compare the label of an object, which never changes and is the same on all nodes."""
        shown = frozenset(label)
        if self._labels.setdefault(target, shown) != shown:
            was = ", ".join(sorted(self._labels[target])) or "nothing"
            raise BrokenPromiseError(
                f"an object labelled {was} is shown as labelled {', '.join(sorted(shown)) or 'nothing'}"
            )

    def write(self, who: Holder, value: bytes, label: Tags) -> None:
        """Record a value that a session or task requests to store in an object with this label."""
        principal = self._sessions.get(who.task)
        if principal is None:
            told = self.told(who)
            self._contents[value] = _Content(told, self.known(who) - told, who)
        else:
            self._contents[value] = _Content(frozenset(tag for tag in label if is_owned(tag, principal)))

    def tags_of(self, value: bytes) -> Tags:
        """Return the tags of a value."""
        content = self._contents.get(value)
        return NOTHING if content is None else content.tags

    def stored(self, value: bytes, label: Iterable[str]) -> None:
        """Check a value that a node has stored in an object with this label."""
        content = self._contents.get(value)
        if content is None:
            return
        place, writer = frozenset(label), content.writer
        leaked = content.tags - place
        if writer is not None:
            leaked = self.still_told(writer, leaked)
            self.confined += bool(content.tags & place)
            self.released += bool((content.tags | content.released) - place)
        if leaked:
            raise BrokenPromiseError(
                f"what is labelled {', '.join(sorted(leaked))} was written to an object without this label"
            )
        self._contents[value] = _Content(content.tags & place)

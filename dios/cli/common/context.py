"""A connected node and a person's keyring together: what their words for things mean.

Not for: commands. ``docs/command-line.md`` says what a NAME, a TASK and a group's ALIAS may be.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from dios.cli.common.output import say, size_text, time_text
from dios.client.keyring import Keyring, check_alias
from dios.client.ops.cluster import Gathered, Member
from dios.client.ops.status import Status
from dios.client.sync.node import Group, Node, Reference, Task, connect
from dios.core.model.names import log_name
from dios.errors import ExistsError, InvalidError, NoSuchTaskError, UnreachableError
from dios.ids import Name
from dios.lib import catalogue
from dios.lib.catalogue import CatalogueEntry, StoredCatalogue
from dios.limits import GROUPS_PER_CALL_MAX
from dios.wire.nametext import PREFIX, fingerprint, parse_name
from dios.wire.types import ObjectType

CATALOGUE_ALIAS: Final = "catalogue/"
SHOWN_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class Found:
    """An entry and the alias of the group in whose catalogue it stands."""

    group: str
    entry: CatalogueEntry

    @property
    def fingerprint(self) -> str:
        """What may be shown of the name."""
        return fingerprint(self.entry.name)


class Place:
    """What a command works with."""

    def __init__(self, node: Node, keyring: Keyring) -> None:
        self.node: Final = node
        self.keyring: Final = keyring
        self._made: Final[list[Group]] = []

    # -- groups -------------------------------------------------------------------------------------
    def group(self, text: str) -> Group:
        """The group of an alias or name; raises InvalidError when it is none of ours on this node."""
        name = self.keyring.name_of(text)
        mark = fingerprint(name)
        for group in self._groups():
            if group.fingerprint == mark:
                return group
        raise InvalidError(
            f"this node knows no group {text!r} of yours; `dios group ls` shows which it knows, "
            "`dios group create` makes one"
        )

    def make_group(self, alias: str) -> Group:
        """A new group, its name kept in the keyring under ``alias``."""
        check_alias(alias)
        if alias in self.keyring.groups:
            raise ExistsError(
                f"your keyring has a group {alias!r} already; choose another alias, or "
                f"`dios group forget {alias}` when its node is no more"
            )
        group = self.node.create_group()
        self.keyring.add(alias, Name(group.name or b""))
        self._made.append(group)
        return group

    def _groups(self) -> list[Group]:
        return [*self.node.groups, *self._made]

    def reachable_groups(self) -> list[str]:
        """Aliases of the keyring's groups that this node knows."""
        marks = {group.fingerprint for group in self._groups()}
        return [alias for alias, name in self.keyring.groups.items() if fingerprint(name) in marks]

    # -- catalogues ---------------------------------------------------------------------------------
    def catalogue(self, alias: str) -> StoredCatalogue | None:
        """The catalogue of a group, if it has one; UnreachableError when it is on a node that is away."""
        name = self.keyring.objects.get(CATALOGUE_ALIAS + alias)
        if name is None:
            return None
        found = self.node.lookup(name, group=self.group(alias), limit=1)
        if not found and found.incomplete:
            raise UnreachableError(
                f"the catalogue of group {alias!r} is on a node that does not answer", call="lookup"
            )
        return StoredCatalogue(found[0]) if found else None

    def catalogue_for_writing(self, alias: str) -> StoredCatalogue:
        """The catalogue of a group, made when there is none."""
        known = self.catalogue(alias)
        if known is not None:
            return known
        made = self.node.create(
            ObjectType.DURABLE_BLOB, groups=[self.group(alias)], data=catalogue.encode(())
        )
        try:
            self.keyring.add(CATALOGUE_ALIAS + alias, Name(made.name or b""), section="objects")
        except ExistsError:
            # Somebody else's command made it at the same moment: that one counts.
            made.destroy()
            again = self.catalogue(alias)
            if again is None:
                raise
            return again
        return StoredCatalogue(made)

    def remember(self, alias: str, entries: Iterable[CatalogueEntry]) -> None:
        """Add entries to a group's catalogue."""
        added = tuple(entries)
        catalogue.edit(self.catalogue_for_writing(alias), lambda there: (*there, *added))

    def forget(self, found: Found) -> None:
        """Take an entry out of its catalogue."""
        stored = self.catalogue(found.group)
        if stored is not None:
            gone = found.entry.name
            catalogue.edit(stored, lambda there: (entry for entry in there if entry.name != gone))

    def catalogued(self, aliases: Iterable[str] | None = None) -> list[Found]:
        """Everything that was put into these groups, or into all of them."""
        found: list[Found] = []
        for alias in self.reachable_groups() if aliases is None else aliases:
            try:
                stored = self.catalogue(alias)
                if stored is not None:
                    data, _ = stored.read()
                    found += [Found(alias, entry) for entry in catalogue.decode(data)]
            except UnreachableError as error:
                say(f"{error.message}; what was put into {alias} is not known here now")
        return found

    # -- the cluster --------------------------------------------------------------------------------
    def here(self) -> Member | None:
        """The node that is asked, as one of its cluster; None when it is alone."""
        return next((member for member in self.node.nodes() if member.here), None)

    # -- objects ------------------------------------------------------------------------------------
    def find(self, text: str) -> tuple[Name, Found | None]:
        """The name that a NAME argument means, and its entry if it is catalogued."""
        everything = self.catalogued()
        if text.strip().lower().startswith(PREFIX):
            name = parse_name(text)
            return name, next((found for found in everything if found.entry.name == name), None)
        by_file = {id(entry) for entry in catalogue.matching((found.entry for found in everything), text)}
        fitting = [
            found
            for found in everything
            if id(found.entry) in by_file or (len(text) >= 4 and found.fingerprint.startswith(text.lower()))
        ]
        if not fitting:
            raise InvalidError(
                f"nothing was put as {text!r}; `dios ls` shows what was. A name begins with {PREFIX}"
            )
        if len({found.entry.name for found in fitting}) > 1:
            listed = "".join(
                f"\n  {found.fingerprint}  {found.entry.file}  {size_text(found.entry.size)}, "
                f"{time_text(found.entry.put_ns)}, group {found.group}"
                for found in fitting[:SHOWN_MAX]
            )
            more = f"\n  and {len(fitting) - SHOWN_MAX} more" if len(fitting) > SHOWN_MAX else ""
            raise InvalidError(
                f"{text!r} fits {len(fitting)} objects; name one by its fingerprint:{listed}{more}"
            )
        return Name(fitting[0].entry.name), fitting[0]

    def object(self, text: str) -> Reference:
        """A reference to what a NAME argument means; raises InvalidError when it cannot be reached."""
        name, found = self.find(text)
        reference = self.reach(name)
        if reference is None:
            raise InvalidError(
                f"{found.entry.file if found else fingerprint(name)} cannot be reached: it was destroyed, "
                "or is in no group of your keyring"
            )
        return reference

    def replicas(self, text: str) -> Gathered[Reference]:
        """References to every physical object of what a NAME argument means; InvalidError for none."""
        name, found = self.find(text)
        references = self.node.lookup(name)
        if not references:
            what = found.entry.file if found else fingerprint(name)
            why = "or is in no group of your keyring"
            if references.incomplete:
                why += ", or is on a node that does not answer: `dios node ls`"
            raise InvalidError(f"{what} cannot be reached: it was destroyed, {why}")
        return references

    def reach(self, name: Name) -> Reference | None:
        """The nearest object of a name, or None."""
        return self.node.find(name)

    # -- tasks --------------------------------------------------------------------------------------
    def task(self, text: str) -> tuple[Task, Status]:
        """A handle of the task that a TASK argument means, and how it was when we looked."""
        status = self.task_row(text)
        found = None if status.name is None else self.node.find(status.name)
        if not isinstance(found, Task):
            raise NoSuchTaskError("the node no longer keeps this task", fingerprint=status.fingerprint)
        return found, status

    def log_of(self, text: str) -> bytes | None:
        """What an ended task wrote, as it was kept; None when no log is found."""
        if text.strip().lower().startswith(PREFIX):
            name = Name(parse_name(text))
        else:
            rows = [row for row in self.node.tasks() if text in {row.fingerprint, row.label}]
            if not rows or rows[-1].name is None:
                return None
            name = Name(rows[-1].name)
        log = self.node.find(log_name(name))
        return None if log is None else log.read_bytes()

    def task_row(self, text: str) -> Status:
        """The one task that a TASK argument means."""
        rows = self.node.tasks()
        if text.strip().lower().startswith(PREFIX):
            name = parse_name(text)
            fitting = [row for row in rows if row.name == name]
        else:
            fitting = [row for row in rows if row.fingerprint.startswith(text.lower())]
            if not fitting:
                labelled = [row for row in rows if row.label == text]
                # A label is given again and again; what runs now is meant, or else the last that did.
                fitting = [row for row in labelled if not row.ended] or labelled[-1:]
        if not fitting:
            raise InvalidError(f"there is no task {text!r}; `dios ps --all` shows those of yours")
        if len(fitting) > 1:
            listed = "".join(f"\n  {row.fingerprint}  {row.label}" for row in fitting[:SHOWN_MAX])
            raise InvalidError(f"{text!r} fits {len(fitting)} tasks; say more of the fingerprint:{listed}")
        return fitting[0]


def groups_of_keyring(node: str | None) -> dict[str, tuple[str, bool]]:
    """Each alias of the keyring with its group's fingerprint and whether the node knows the group."""
    groups = Keyring.load().groups
    names = [bytes(name) for name in groups.values()]
    known: set[str] = set()
    # At least once: without any group, too, the node must be there.
    for start in range(0, max(len(names), 1), GROUPS_PER_CALL_MAX):
        with connect(node, groups=names[start : start + GROUPS_PER_CALL_MAX]) as connected:
            known.update(group.fingerprint for group in connected.groups)
    marks = {alias: fingerprint(name) for alias, name in groups.items()}
    return {alias: (mark, mark in known) for alias, mark in marks.items()}


@contextlib.contextmanager
def opened(node: str | None, groups: Iterable[str] = ()) -> Iterator[Place]:
    """Connect as the person who runs the command, with ``groups`` and the others of their keyring.

    A session takes GROUPS_PER_CALL_MAX of them, the newest first; what is left out is told.
    """
    keyring = Keyring.load()
    wanted = dict.fromkeys([*map(keyring.name_of, groups), *keyring.presented()])
    with connect(node, groups=tuple(wanted)[:GROUPS_PER_CALL_MAX]) as connected:
        yield Place(connected, keyring)
    left_out = len(set(keyring.groups.values())) - GROUPS_PER_CALL_MAX
    if left_out > 0:
        say(f"{left_out} older groups of your keyring were left out; name the one you mean with --group")

"""A connected node with the user's keyring, and the meaning of a command's arguments.

``docs/command-line.md`` defines NAME, TASK and ALIAS.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from dios.cli.common.failures import SHOWN_MAX, Failures
from dios.cli.common.output import say, size_text, time_text
from dios.client.grants import accepted_grants
from dios.client.keyring import Keyring, check_group_alias
from dios.client.ops.cluster import Gathered, Member
from dios.client.ops.status import Status
from dios.client.sync.node import Group, Node, Reference, Task, connect
from dios.core.model.names import log_name
from dios.errors import (
    Conflict,
    DamagedError,
    ExistsError,
    InvalidError,
    NoSuchTaskError,
    NotPermittedError,
    StaleError,
    UnreachableError,
)
from dios.ids import Name
from dios.lib import catalogue
from dios.lib.catalogue import CatalogueEntry
from dios.lib.files.catalogue_places import CataloguePlace, KeyringCatalogue, SharedCatalogue
from dios.lib.files.group_files import GroupFiles
from dios.lib.files.paths import stored_path
from dios.lib.files.sound_replicas import BadReplicas
from dios.lib.files.tree import is_directory
from dios.limits import GROUPS_PER_CALL_MAX
from dios.wire.nametext import PREFIX, fingerprint, parse_name

_CONFLICT: Final = "its list is in conflict, and one of several was read; next: "


@dataclass(frozen=True, slots=True)
class CataloguedFile:
    """A catalogue entry, with the alias of the group of that catalogue."""

    group: str
    entry: CatalogueEntry

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the name, which may be shown."""
        return fingerprint(self.entry.name)

    @property
    def path(self) -> str:
        """The path of the file in its group."""
        return stored_path(self.entry.file)


class _PassedOver:
    """The bad replicas that a command passed over: a person gets the first ones, and a number."""

    def __init__(self) -> None:
        self._count = 0

    def note(self, bad_replicas: BadReplicas) -> None:
        """Report bad replicas of a file."""
        self._count += 1
        if self._count <= SHOWN_MAX:
            say(str(bad_replicas))

    def end(self) -> None:
        """Report the number of the others."""
        if self._count > SHOWN_MAX:
            say(f"bad replicas of {self._count - SHOWN_MAX:,} more files were passed over")


class CommandContext:
    """The connection and the keyring of a command."""

    def __init__(self, node: Node, keyring: Keyring) -> None:
        self.node: Final = node
        self.keyring: Final = keyring
        self._made: Final[list[Group]] = []
        self._files: Final[dict[str, GroupFiles]] = {}
        self.grants: Final = accepted_grants()
        """The groups that other users share with this user; an alias of the keyring comes first."""
        self.passed_over: Final = _PassedOver()
        self.unlisted: Final = Failures("not listed")
        """The groups whose lists could not be read, or only one of several, with the reasons."""
        self._shared: Final[dict[str, Group]] = {}

    # -- groups -------------------------------------------------------------------------------------
    def group(self, text: str) -> Group:
        """Return the group of an alias or name. Raise InvalidError if the node does not know it."""
        if self._is_shared(text):
            return self._accept(text)
        name = self.keyring.name_of(text)
        mark = fingerprint(name)
        for group in self._made:
            if group.fingerprint == mark:
                return group
        known_group = self.node.group(name)
        if known_group is not None:
            return known_group
        raise InvalidError(
            f"this node knows no group {text!r} of yours. `dios group ls` lists the groups that it knows; "
            "`dios group create` makes one."
        )

    def _is_shared(self, alias: str) -> bool:
        return alias in self.grants and alias not in self.keyring.groups

    def _accept(self, alias: str) -> Group:
        group = self._shared.get(alias)
        if group is None:
            grant = self.grants[alias]
            group = self._shared[alias] = self.node.accept_share(
                grant.group, nonce=grant.nonce, issuer=grant.issuer, expires_ns=grant.expires_ns
            )
        return group

    def _group_to_search(self, file: CataloguedFile | None) -> Group | None:
        """Return the group that a lookup must name: one that is shared with this user."""
        return self._accept(file.group) if file is not None and self._is_shared(file.group) else None

    def make_group(self, alias: str) -> Group:
        """Create a group and keep its name in the keyring under ``alias``."""
        check_group_alias(alias)
        if alias in self.keyring.groups:
            raise ExistsError(
                f"your keyring already has a group {alias!r}. Choose another alias, or run "
                f"`dios group forget {alias}` if its node no longer exists."
            )
        group = self.node.create_group()
        self.keyring.add(alias, Name(group.name or b""))
        self._made.append(group)
        return group

    def _groups(self) -> list[Group]:
        return [*self.node.groups, *self._made]

    def reachable_groups(self) -> list[str]:
        """Return the aliases of the keyring's groups that this node knows."""
        self.node.present_all()
        marks = {group.fingerprint for group in self._groups()}
        own = [alias for alias, name in self.keyring.groups.items() if fingerprint(name) in marks]
        return own + [alias for alias in self.grants if self._is_reachable(alias)]

    def _is_reachable(self, alias: str) -> bool:
        if not self._is_shared(alias):
            return False
        try:
            self._accept(alias)
        except (NotPermittedError, UnreachableError) as error:
            say(f"{alias}, which was shared with you: {error.message}")
            return False
        return True

    # -- files --------------------------------------------------------------------------------------
    def files(self, alias: str) -> GroupFiles:
        """Return the files of a group."""
        files = self._files.get(alias)
        if files is None:
            group = self.group(alias)
            place: CataloguePlace = KeyringCatalogue(self.node, self.keyring, alias, group)
            if self._is_shared(alias):
                place = SharedCatalogue(self.node, group, self.grants[alias].catalogue)
            files = self._files[alias] = GroupFiles(self.node, group, place, self.passed_over.note)
        return files

    def split(self, text: str) -> tuple[str, str] | None:
        """Return the group and the path in it that ``text`` means; None if it names no group."""
        alias, _, inner = text.removeprefix("dios://").strip("/").partition("/")
        known = alias in self.keyring.groups or alias in self.grants
        return (alias, stored_path(f"./{inner}")) if known else None

    def catalogued(self, aliases: Iterable[str] | None = None) -> Iterator[CataloguedFile]:
        """Yield the files of these groups, or of all groups, in the order in which they were stored.

        One catalogue is in memory at a time, however many groups there are.
        """
        for alias in self.reachable_groups() if aliases is None else aliases:
            yield from _files_of(alias, self.entries(alias))

    def catalogued_names(self) -> Iterator[bytes]:
        """Yield the names of all objects that catalogues have: files, parts, unfinished and former files.

        Raises the error of a catalogue that cannot be read.
        """
        for alias in self.reachable_groups():
            for entry in self.files(alias).entries():
                yield from entry.names
            tree = self.files(alias).tree()
            for file in tree.unfinished.values():
                yield from (part.name for part in file.parts)
            for note in tree.notes:
                yield from note.former.local_names

    def entries(self, alias: str) -> tuple[CatalogueEntry, ...]:
        """Return the entries of a group's catalogue; none if it cannot be read.

        The group is in ``unlisted`` then, and also if it is in conflict.
        """
        with self.unlisted.going_on(alias):
            return self._readable_entries(alias)
        return ()

    def _readable_entries(self, alias: str) -> tuple[CatalogueEntry, ...]:
        entries = self.files(alias).entries()
        self.note_conflict(alias)
        return entries

    def note_conflict(self, alias: str) -> None:
        """Note a catalogue that is in conflict: then some of the files are not listed."""
        if self.files(alias).record.is_divided:
            self.unlisted.note(alias, f"{_CONFLICT}dios group repair {alias}")

    # -- the cluster --------------------------------------------------------------------------------
    def here(self) -> Member | None:
        """Return the asked node as a member of its cluster, or None if it is in no cluster."""
        return next((member for member in self.node.nodes() if member.here), None)

    # -- objects ------------------------------------------------------------------------------------
    def find(self, text: str, group: str = "") -> tuple[Name, CataloguedFile | None]:
        """Return the name that a NAME argument means, and its catalogue entry if it has one.

        With the alias of a group, NAME is the path of a file in it, or the end or a fingerprint of one.
        """
        if group:
            self.group(group)
        if text.strip().lower().startswith(PREFIX):
            name = parse_name(text)
            return name, next((file for file in self.catalogued() if file.entry.name == name), None)
        place = (group, stored_path(f"./{text}")) if group else self.split(text)
        near = [place[0]] if place is not None and place[0] in self.reachable_groups() else []
        exact = [
            file
            for alias in near
            for file in _files_of(alias, self._readable_entries(alias))
            if (file.group, file.path) == place
        ]
        if exact:
            return Name(exact[-1].entry.name), exact[-1]
        fitting = [
            file
            for file in (_files_of(group, self._readable_entries(group)) if group else self.catalogued())
            if catalogue.matches(file.entry, text)
            or (len(text) >= 4 and file.fingerprint.startswith(text.lower()))
        ]
        if not fitting:
            self._refuse_directory(text, group)
            wanted = group or (place[0] if place is not None else "")
            unread = [
                f"group {alias}: {reason}"
                for alias, reason in self.unlisted.reasons.items()
                if wanted in {"", alias}
            ]
            if unread:
                raise Conflict(f"{text!r} is in no list that can be read now. Unread, {'; '.join(unread)}")
            scope = f" in group {group}" if group else ""
            raise InvalidError(
                f"there is no file {text!r}{scope}. `dios ls` lists the files; a name begins with {PREFIX}."
            )
        if len({file.entry.name for file in fitting}) > 1:
            listed = "".join(
                f"\n  {file.fingerprint}  {file.entry.file}  {size_text(file.entry.size)}, "
                f"{time_text(file.entry.put_ns)}, group {file.group}"
                for file in fitting[:SHOWN_MAX]
            )
            more = f"\n  and {len(fitting) - SHOWN_MAX} more" if len(fitting) > SHOWN_MAX else ""
            raise InvalidError(
                f"{text!r} matches {len(fitting)} objects. Choose one by its fingerprint:{listed}{more}"
            )
        return Name(fitting[0].entry.name), fitting[0]

    def _refuse_directory(self, text: str, group: str) -> None:
        """Raise InvalidError if a text that means no file means a directory."""
        reachable = self.reachable_groups()
        inner, place = stored_path(f"./{text}"), self.split(text)
        places = [(alias, inner) for alias in ([group] if group else reachable)]
        if place is not None and place[0] in reachable and not group:
            places.insert(0, place)
        for alias, path in places:
            try:
                is_directory_there = self.files(alias).tree().is_directory(path)
            except (UnreachableError, DamagedError):
                continue  # the group is unlisted
            if is_directory_there:
                shown = f"{alias}/{path}".rstrip("/")
                raise InvalidError(
                    f"{shown} is a directory, and this needs a file. `dios ls {shown}` lists it; `dios get` "
                    f"and `dios rm` take {shown} with --recursive."
                )

    def brought_back(self, file: CataloguedFile) -> CataloguedFile:
        """Return a file whose bytes can be read: a tiered one is brought back first."""
        try:
            return CataloguedFile(file.group, self.files(file.group).readable(file.path))
        except FileNotFoundError as error:
            raise InvalidError(f"cannot read {file.group}/{file.path}: {error.strerror}") from None

    def object(self, text: str, group: str = "") -> Reference:
        """Return a reference to the object that a NAME argument means. Raise InvalidError without one.

        A file in parts is not one object, and is refused.
        """
        name, file = self.find(text, group)
        if file is not None and file.entry.in_parts:
            raise InvalidError(
                f"{file.group}/{file.path} is stored in {len(file.entry.names)} parts, and this needs one "
                "object. A task gets such a file with `dios run --input FILE=NAME`, or reads it as dios:// "
                "path: give it the group, with dios.Executor(files=...) or files_for_task."
            )
        _require_local(file)
        if file is not None and file.entry.digest:
            with contextlib.suppress(StaleError):
                return self.files(file.group).replicas(file.entry).reference()
        reference = self.node.find(name, group=self._group_to_search(file))
        if reference is None:
            raise InvalidError(
                f"cannot find {file.entry.file if file else fingerprint(name)}: it was destroyed, "
                "or is in no group of your keyring"
            )
        return reference

    def file_objects(self, text: str) -> list[Reference]:
        """Return references to the parts of the file that a NAME argument means, or to its one object."""
        _, file = self.find(text)
        if file is not None and file.entry.in_store:
            file = self.brought_back(file)
            text = f"{file.group}/{file.path}"
        if file is None or not file.entry.in_parts:
            return [self.object(text)]
        parts = self.files(file.group).parts(file.entry)
        try:
            return [parts.reference(number) for number in range(len(parts.parts))]
        except OSError as error:
            raise InvalidError(f"cannot read {file.group}/{file.path}: {error.strerror or error}") from None

    def replicas(self, text: str, group: str = "") -> Gathered[Reference]:
        """Return references to all physical objects that a NAME argument means. Raise InvalidError."""
        name, file = self.find(text, group)
        _require_local(file)
        references = self.node.lookup(name, group=self._group_to_search(file))
        if not references:
            subject = file.entry.file if file else fingerprint(name)
            why = "or is in no group of your keyring"
            if references.incomplete:
                why += ", or is on a node that does not answer: `dios node ls`"
            raise InvalidError(f"cannot find {subject}: it was destroyed, {why}")
        return references

    # -- tasks --------------------------------------------------------------------------------------
    def task(self, text: str) -> tuple[Task, Status]:
        """Return a handle and the status of the task that a TASK argument means."""
        status = self.task_row(text)
        task = None if status.name is None else self.node.find(status.name)
        if not isinstance(task, Task):
            raise NoSuchTaskError("the node does not keep this task any more", fingerprint=status.fingerprint)
        return task, status

    def log_of(self, text: str) -> bytes | None:
        """Return the stored output of an ended task, or None."""
        if text.strip().lower().startswith(PREFIX):
            name = Name(parse_name(text))
        else:
            tasks = self.node.tasks()
            rows = [row for row in tasks if row.fingerprint == text] or tasks_called(tasks, text)
            if not rows or rows[-1].name is None:
                return None
            name = Name(rows[-1].name)
        log = self.node.find(log_name(name))
        return None if log is None else log.read_bytes()

    def task_row(self, text: str) -> Status:
        """Return the status of the only task that a TASK argument means. Raise InvalidError."""
        rows = self.node.tasks()
        if text.strip().lower().startswith(PREFIX):
            name = parse_name(text)
            fitting = [row for row in rows if row.name == name]
        else:
            fitting = [row for row in rows if row.fingerprint.startswith(text.lower())]
            if not fitting:
                labelled = tasks_called(rows, text)
                # Labels are used repeatedly: a running task comes first, else the last one with the label.
                fitting = [row for row in labelled if not row.ended] or labelled[-1:]
        if not fitting:
            raise InvalidError(f"there is no task {text!r}. `dios ps --all` lists your tasks.")
        if len(fitting) > 1:
            listed = "".join(f"\n  {row.fingerprint}  {row.label}" for row in fitting[:SHOWN_MAX])
            raise InvalidError(
                f"{text!r} matches {len(fitting)} tasks. Give more of the fingerprint:{listed}"
            )
        return fitting[0]


def tasks_called(tasks: Iterable[Status], text: str) -> list[Status]:
    """Return the tasks with this title, and the attempts of the kept job, or of the element ``sweep.7``.

    The name of an array or a service with several tasks names none of them.
    """
    called: list[Status] = []
    slots = set()
    for task in tasks:
        place = re.fullmatch(re.escape(text) + r"(\.[0-9]+)?/[0-9]+/[0-9a-f]+", task.label)
        if place is not None and place[1]:
            slots.add(place[1])
        if task.label == text or (place is not None and place[1] in {None, ".0"}):
            called.append(task)
    return called if slots <= {".0"} else [task for task in called if not task.label.startswith(f"{text}.0/")]


def _files_of(alias: str, entries: Iterable[CatalogueEntry]) -> Iterator[CataloguedFile]:
    return (CataloguedFile(alias, entry) for entry in entries if not is_directory(entry))


def _require_local(file: CataloguedFile | None) -> None:
    """Raise InvalidError for a tiered file, which has no object here."""
    if file is not None and file.entry.tier is not None and file.entry.tiered:
        path = f"{file.group}/{file.path}"
        raise InvalidError(
            f"{path} is tiered: its bytes are in {file.entry.tier.place}. Bring it back: dios tier in {path}"
        )


def groups_of_keyring(node: str | None) -> dict[str, tuple[str, bool]]:
    """Return each alias of the keyring with its group's fingerprint, and True if the node knows the group."""
    groups = Keyring.load().groups
    names = [bytes(name) for name in groups.values()]
    known: set[str] = set()
    # Connect at least once: even without groups, the node must be there.
    for start in range(0, max(len(names), 1), GROUPS_PER_CALL_MAX):
        with connect(node, groups=names[start : start + GROUPS_PER_CALL_MAX], start=False) as connected:
            known.update(group.fingerprint for group in connected.groups)
    marks = {alias: fingerprint(name) for alias, name in groups.items()}
    return {alias: (mark, mark in known) for alias, mark in marks.items()}


@contextlib.contextmanager
def opened(node: str | None, groups: Iterable[str] = ()) -> Iterator[CommandContext]:
    """Connect as the user who runs the command, with ``groups`` and the other groups of the keyring.

    A session begins with at most GROUPS_PER_CALL_MAX groups, newest first, and gets the others when they are
    needed. A notice reports those for which it has no room.
    """
    keyring = Keyring.load()
    shared = {alias for alias in accepted_grants() if alias not in keyring.groups}
    own = (keyring.name_of(alias) for alias in groups if alias not in shared)
    wanted = dict.fromkeys([*own, *keyring.presented()])
    with connect(node, groups=tuple(wanted)[:GROUPS_PER_CALL_MAX], start=False) as connected:
        connected.present_later = keyring.presented_later
        place = CommandContext(connected, keyring)
        try:
            yield place
        finally:
            place.passed_over.end()
            place.unlisted.show()
    left_out = keyring.not_presented
    if left_out > 0:
        say(f"{left_out} older groups of your keyring were left out; choose one of them with --group")

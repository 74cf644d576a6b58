"""Programs of the user, which call the real library: they put, replace, move, remove, tier and read files.

They also write to objects with promises of their own, and change promises. Several run at once, each on any
node, and each may be killed at any change that it makes.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final, cast

import trio

from dios import limits
from dios.errors import (
    Busy,
    ClosedError,
    Conflict,
    DamagedError,
    DiosError,
    InvalidError,
    LimitError,
    NotPermittedError,
    UnreachableError,
)
from dios.lib import catalogue
from dios.lib.catalogue import CatalogueEntry
from dios.lib.files.catalogue_places import CATALOGUE_ALIAS, KeyringCatalogue
from dios.lib.files.downloads import copy_out
from dios.lib.files.group_files import GroupFiles
from dios.lib.files.staging import StagedFiles
from dios.lib.files.tier.outward import tier_out
from dios.lib.kept.promises import Promises
from dios.lib.packs.tier_store import TierStore
from dios.wire.types import ObjectType, Semantics
from labs.sim.kept.calls import ModelSession
from labs.sim.kept.file_history import Change, FileHistory
from labs.sim.kept.links import ModelProgram
from labs.sim.kept.nodes import ModelCluster
from labs.sim.kept.safety import Fault, Safety

if TYPE_CHECKING:
    from dios.client.keyring import Keyring
    from dios.client.sync.node import Node

ALIAS: Final = "papers"
_PAUSE_S: Final = 1.5
_CARELESS: Final = 0.1
"""The part of the writes to single objects that go to any replica."""
_SHARED_PATHS: Final = 4
_OWN_PATHS: Final = 8
_KILLED: Final = 0.5
"""The part of the programs that are killed at one of their first changes."""
_CHANGES_MAX: Final = 60
_FRAMES: Final = 5
_EDITED_MAX: Final = 8


class Users:
    """The user's programs in one run. ``puts`` and ``writes`` count those that were acknowledged."""

    def __init__(self, cluster: ModelCluster, group: bytes, store: TierStore) -> None:
        self.cluster: Final = cluster
        self.random: Final = cluster.random
        self.files: Final = FileHistory()
        self.safety: Final = Safety(cluster, self.files)
        self.store: Final = store
        self.group: Final = group
        self.objects: Final[dict[str, bytes]] = {}
        """The names in the user's keyring, by alias."""
        self.log: Callable[[str], None] = lambda _: None
        """Called with a line for each event of the run's story."""
        self.puts = 0
        self.writes = 0
        self.killed = 0
        self.numbers = 0
        self.created: Final[set[bytes]] = set()
        """Objects that programs created by themselves; one stays if no promise can be made for it."""
        self.edited: Final[list[bytes]] = []
        """Objects with promises of their own, to which programs write."""
        self.promised: Final[list[int]] = []
        """The numbers that may be promised for the group: one, or more after a change that failed."""
        self.stored: Final[set[bytes]] = set()
        """The objects of the files that were acknowledged."""
        self.strayed: Final[set[bytes]] = set()
        """The objects to which a program wrote directly."""

    @property
    def list_name(self) -> bytes:
        """The name of the group's list of files."""
        return self.objects[CATALOGUE_ALIAS + ALIAS]

    def open(self, program: ModelProgram, session: ModelSession) -> tuple[Node, GroupFiles]:
        """Return a node of the blocking client, and the files of the group."""
        program.clock_s = self.cluster.nodes[session.number].clock_s
        node = program.node(session)
        keyring = cast("Keyring", SimpleNamespace(objects=self.objects, path=""))
        return node, GroupFiles(node, node.groups[0], KeyringCatalogue(node, keyring, ALIAS, node.groups[0]))

    async def set_up(self, replicas: int, *, apart: bool) -> None:
        """Make the list of the group on node 0, and promise replicas for the group."""

        def work(program: ModelProgram) -> None:
            node, files = self.open(program, ModelSession(self.cluster, 0, self.group))
            kind = ObjectType.DURABLE_BLOB
            reference = node.create(kind, groups=[files.group], data=catalogue.encode(()))
            self.objects[CATALOGUE_ALIAS + ALIAS] = self.safety.list_name = reference.name or b""
            Promises(node).keep_group(files.group, reference, label=ALIAS, replicas=replicas, apart=apart)

        await ModelProgram(work).run()
        self.promised.append(replicas)

    async def run(self, number: int, span_s: float) -> None:
        """Run one program after the other for a span of time."""
        end = trio.current_time() + span_s
        while trio.current_time() < end:
            await trio.sleep(self.random.expovariate(1 / _PAUSE_S))
            up = [node.number for node in self.cluster.nodes if node.is_up]
            if not up:
                continue
            kill_at = self.random.randint(1, _CHANGES_MAX) if self.random.random() < _KILLED else None
            session = ModelSession(self.cluster, self.random.choice(up), self.group, kill_at=kill_at)

            def work(program: ModelProgram, session: ModelSession = session) -> None:
                user = _OneProgram(self, program, session, number)
                while self.cluster.now() < end and not session.closed:
                    program.sleep(self.random.expovariate(1 / _PAUSE_S))
                    user.do_something()

            await ModelProgram(work).run()
            if session.killed:
                self.killed += 1
                self.log(f"program {number} on n{session.number} was killed")
            session.close()


class _OneProgram:
    """One program, from its start to its end."""

    def __init__(self, users: Users, program: ModelProgram, session: ModelSession, number: int) -> None:
        self._users: Final = users
        self._random: Final = users.random
        self._session: Final = session
        self._number: Final = number
        self._node, self._files = users.open(program, session)

    def do_something(self) -> None:
        """Do one thing; errors that the library documents end it."""
        kind = self._random.choices(
            (self._put, self._remove, self._move, self._read, self._tier, self._create, self._write),
            (35, 8, 5, 12, 14, 8, 18),
        )[0]
        try:
            kind()
        except (DiosError, OSError) as error:
            self._log(f"{kind.__name__.strip('_')} failed: {error}")
            if isinstance(error, ClosedError):
                self._session.in_doubt = True  # its node has ended, and cleans nothing up for it
        except Exception as error:  # noqa: BLE001 - no program ends with another one
            self._users.safety.faults.append(Fault("error", where_raised(error)))

    # -- files --------------------------------------------------------------------------------------
    def _path(self) -> str:
        if self._random.random() < 0.4:
            return f"shared/{self._random.randrange(_SHARED_PATHS)}"
        return f"{self._number}/{self._random.randrange(_OWN_PATHS)}"

    def _known_path(self) -> str:
        """Return the path of a file that there is, in most cases."""
        there = sorted(self._files.tree().files)
        return self._random.choice(there) if there and self._random.random() < 0.9 else self._path()

    def _content(self) -> bytes:
        self._users.numbers += 1
        text = f"content {self._users.numbers} ".encode()
        size = self._random.choice(
            (
                0,
                0,
                0,
                limits.INLINE_BYTES_MAX + 1,
                limits.FILE_WHOLE_BYTES_MAX + 1,
                3 * limits.FILE_PART_BYTES,
            )
        )
        return text * (size // len(text) + 1)

    def _log(self, text: str) -> None:
        self._users.log(f"program {self._number} on n{self._session.number}: {text}")

    def _begin(self, contents: dict[str, bytes | None], text: str) -> Change:
        shown_contents = ", ".join(f"{path} ({shown(content)})" for path, content in contents.items())
        self._log(f"{text} {shown_contents}")
        return self._users.files.begin(contents, self._users.cluster.now())

    def _acknowledge(self, change: Change, entries: Iterable[CatalogueEntry] = ()) -> None:
        self._log(f"done with {', '.join(change.contents)}")
        change.acknowledge(self._users.cluster.now(), entries)
        for entry in change.entries.values():
            self._users.stored.update(entry.names)
        self._users.safety.note_acknowledged(change)

    def _put(self) -> None:
        """Put files as `dios put --replace` does, in most cases on as many disks as are promised."""
        contents = {self._path(): self._content() for _ in range(self._random.choice((1, 1, 2, 4)))}
        disks = 1 if self._random.random() < 0.2 else None
        change = self._begin(dict(contents), "put" if disks is None else "put on one disk")
        staged = StagedFiles(self._files, disks=disks)
        try:
            for path, data in contents.items():
                staged.add_bytes(path, data)
            change.disks = staged.disks
        except (DiosError, OSError):
            change.refuse()
            staged.suspend()
            raise
        try:
            entries = staged.publish()
        except (UnreachableError, DamagedError):
            self._session.in_doubt = True  # a later change of the list may complete it
            raise
        except (OSError, Busy, Conflict, InvalidError, LimitError, NotPermittedError):
            change.refuse()
            raise
        change.disks = min(change.disks, staged.disks)  # fewer are promised meanwhile
        self._acknowledge(change, entries)
        self._users.puts += 1

    def _remove(self) -> None:
        path = self._known_path()
        self._files.entry(path)
        change = self._begin({path: None}, "remove")
        self._files.remove([path])
        self._acknowledge(change)

    def _move(self) -> None:
        """Move a file of this program's own, if its content is certain."""
        old, new = (f"{self._number}/{self._random.randrange(_OWN_PATHS)}" for _ in range(2))
        now = self._users.cluster.now()
        (content,) = known if len(known := self._users.files.allowed(old, now, now)) == 1 else {None}
        if content is None or old == new or self._users.files.is_excused(old, now):
            return
        change = self._begin({old: None, new: content}, "move")
        self._files.move({old: new})
        self._acknowledge(change)

    def _read(self) -> None:
        path = self._known_path()
        begun = self._users.cluster.now()
        try:
            entry = self._files.entry(path)
        except FileNotFoundError:
            content = None
        else:
            content = self.content_of(self._files, entry)
        now = self._users.cluster.now()
        if content not in self._users.files.allowed(path, begun, now) and not self._users.files.is_excused(
            path, begun
        ):
            text = f"{path} was read as {shown(content)} at {begun:.3f}"
            self._users.safety.faults.append(Fault("read", text))

    @staticmethod
    def content_of(files: GroupFiles, entry: CatalogueEntry) -> bytes:
        """Return the bytes of a file. Raises as ``copy_out`` does."""
        content = bytearray()
        copy_out(files, entry, SimpleNamespace(write=content.extend))
        return bytes(content)

    def _tier(self) -> None:
        """Move a file into the store, or read one back."""
        away = sorted(path for path, entry in self._files.tree().files.items() if entry.tiered)
        path = self._random.choice(away) if away and self._random.random() < 0.6 else self._known_path()
        is_tiered = self._files.entry(path).tiered
        self._log(f"tier {'in' if is_tiered else 'out'} {path}")
        try:
            if is_tiered:
                self._files.view(path)
                self._users.stored.update(self._files.entry(path).names)
            else:
                tier_out(self._files, self._users.store, [path])
        except UnreachableError:
            self._session.in_doubt = True
            raise

    # -- single objects -----------------------------------------------------------------------------
    def _create(self) -> None:
        """Create an object that programs write to, empty or not, and promise replicas for it."""
        if len(self._users.edited) >= _EDITED_MAX:
            return
        large = bytes(limits.INLINE_BYTES_MAX + 1)
        data = self._random.choice((b"", b"", large, self._content()))
        reference = self._node.create(ObjectType.DURABLE_BLOB, groups=[self._files.group], data=data)
        name, write = reference.name or b"", self._session.written
        self._users.created.add(name)
        replicas = self._random.randint(2, 3)
        Promises(self._node).keep_objects(self._files.group, {name: "object"}, replicas=replicas)
        self._note_write(name, write)
        self._users.edited.append(name)

    def _write(self) -> None:
        """Write new bytes to one replica of an object, in most cases to a latest one."""
        if not self._users.edited:
            return
        references = self._node.lookup(self._random.choice(self._users.edited), group=self._files.group)
        if not references:
            return
        reference = max(references, key=lambda candidate: (candidate.v_w, -candidate.object_id))
        if self._random.random() < _CARELESS:
            reference = self._random.choice(references)
        data = self._content() * self._random.choice((1, limits.INLINE_BYTES_MAX))
        with reference.write(len(data), Semantics.EXCL, blank=True, replace=True) as request:
            if request.v_w != reference.v_w:
                raise Conflict("another program was faster")
            request.fill(memoryview(data))
        self._note_write(reference.name or b"", self._session.written)
        self._users.writes += 1

    def _note_write(self, name: bytes, write: int) -> None:
        history = self._users.cluster.history
        history.acknowledge(name, write)
        history.forget_lost(name, [replica.write for replica in self._users.cluster.living(name)])


def where_raised(error: BaseException) -> str:
    """Return an error with the places in the library from which it came."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    frames = traceback.extract_tb(error.__traceback__)
    places = [f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in frames]
    return f"{type(error).__name__}: {error} ({' '.join(places[-_FRAMES:])})"


def shown(content: bytes | None) -> str:
    """Return the beginning of a content for a message."""
    return "no file" if content is None else " ".join(content[:24].decode(errors="replace").split()[:2])

"""Former files of a group: nothing is destroyed before its replacement is kept, or the user removed it."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, ParamSpec, cast

import msgspec
import pytest
from blake3 import blake3

from dios import limits
from dios.client.ops.cluster import Gathered
from dios.errors import (
    BadReferenceError,
    Conflict,
    DamagedError,
    DiosError,
    InvalidError,
    LimitError,
    NotPermittedError,
    StaleError,
    UnreachableError,
)
from dios.lib.catalogue import CatalogueEntry, Note, Part, Tiered, UnfinishedFile, pack_parts
from dios.lib.files import group_list
from dios.lib.files.cached_catalogue import CachedCatalogue
from dios.lib.files.catalogue_places import CataloguePlace
from dios.lib.files.downloads import copy_former, copy_out
from dios.lib.files.group_files import GroupFiles
from dios.lib.files.sources import MemorySource
from dios.lib.files.staging import StagedFiles
from dios.lib.files.tier.entries import prune
from dios.lib.files.uploads import PartsUpload
from dios.lib.packs import tier_store
from dios.lib.packs.tier_store import packs_of
from dios.wire.types import ObjectType, Permission, Proximity, Semantics
from tests.unit.lib.files.test_cached_catalogue import Memory

if TYPE_CHECKING:
    from typing import Self

    from dios.client.sync.node import Group, Node
    from dios.lib.packs.tier_store import TierStore

_P = ParamSpec("_P")
GROUP = SimpleNamespace(fingerprint="0123456789ab")


class Replica:
    """A replica of an object on one of the nodes."""

    type = ObjectType.DURABLE_BLOB
    proximity = Proximity.CLUSTER
    v_w = 0

    def __init__(self, cluster: Cluster, name: bytes, node: str) -> None:
        self._cluster = cluster
        self.name = name
        self.node = node
        self.object_id = hash((name, node))
        self.size = len(self.view_bytes())
        self.secrecy = ()
        self.permissions = 0 if name in cluster.protected else Permission.DELETE

    def view_bytes(self) -> memoryview:
        """The bytes."""
        return memoryview(self._cluster.objects[self.name][self.node])

    @contextmanager
    def read(self, _: Semantics, *, size: int, offset: int) -> Iterator[SimpleNamespace]:
        """A range of the bytes."""
        yield SimpleNamespace(view=self.view_bytes()[offset : offset + size])

    def destroy(self) -> None:
        """Destroy it."""
        if self._cluster.refusals:
            raise self._cluster.refusals.pop()
        del self._cluster.objects[self.name][self.node]

    def close(self) -> None:
        """Close the reference."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Cluster:
    """Nodes with replicas; those that are away do not answer."""

    def __init__(self) -> None:
        self.objects: dict[bytes, dict[str, bytes]] = {}
        self.away: set[str] = set()
        self.protected: set[bytes] = set()
        self.refusals: list[DiosError] = []

    def store(self, text: str, *nodes: str) -> tuple[bytes, int, bytes]:
        """Store an object on nodes, and return its name, size and digest."""
        data, name = text.encode(), blake3(text.encode(), derive_key_context="name").digest()
        self.objects[name] = dict.fromkeys(nodes, data)
        return name, len(data), blake3(data).digest()

    def nodes_of(self, text: str) -> set[str]:
        """The nodes that have the object of a text."""
        return set(self.objects[blake3(text.encode(), derive_key_context="name").digest()])

    def lookup(self, name: bytes, **_: object) -> Gathered[Replica]:
        """The replicas on nodes that answer."""
        there = [node for node in self.objects.get(name, {}) if node not in self.away]
        return Gathered([Replica(self, name, node) for node in there], incomplete=bool(self.away))

    def find(self, name: bytes, **_: object) -> Replica | None:
        """One of the replicas."""
        return next(iter(self.lookup(name)), None)

    def create(self, *_: object, **__: object) -> Replica:
        """The nodes have no room for another object."""
        raise LimitError("no room")

    @contextmanager
    def batch(self) -> Iterator[SimpleNamespace]:
        """Calls that are made at once."""

        def add(call: Callable[_P, object], *arguments: _P.args, **named: _P.kwargs) -> SimpleNamespace:
            try:
                value = call(*arguments, **named)
            except DiosError as error:
                failure = error

                def fail() -> object:
                    raise failure

                return SimpleNamespace(result=fail, error=failure)
            return SimpleNamespace(result=lambda: value, error=None)

        yield SimpleNamespace(add=add)


class Files(GroupFiles):
    """The files of a group whose catalogue is in memory, and replicated unless a test says otherwise."""

    is_replicated = True

    def __init__(self, cluster: Cluster) -> None:
        place = cast("CataloguePlace", SimpleNamespace(replicas=list))
        super().__init__(cast("Node", cluster), cast("Group", GROUP), place)
        self.cluster = cluster
        self._memory = CachedCatalogue(Memory())

    def _known(self) -> CachedCatalogue[int]:  # type: ignore[override] # versions in memory are numbers
        return self._memory

    def default_disks(self) -> int:
        """One disk acknowledges what a test stores, whatever is promised."""
        return 1

    def put(self, path: str, text: str, *nodes: str) -> None:
        """Store a file on these nodes, and give it its path."""
        staged = StagedFiles(self)
        staged.add_object(path, *self.cluster.store(text, *(nodes or ("n1",))))
        staged.publish()

    @property
    def noted(self) -> dict[str, int]:
        """The path of each former file, and the number of objects that it waits for."""
        return {note.former.file: len(note.replacement) for note in self.tree().notes}


class Promised:
    """The promise of the group, as the code under test reads it."""

    def __init__(self) -> None:
        self.replicas = 0

    def known(self) -> list[SimpleNamespace]:
        """The promise of the group."""
        promise = SimpleNamespace(key=GROUP.fingerprint, is_single=False, replicas=self.replicas)
        return [promise] if self.replicas else []

    def promise(self, _: Group) -> SimpleNamespace | None:
        """The promise of the group, or None."""
        return next(iter(self.known()), None)


class Store:
    """A store with the packs of one file."""

    place = "a place"

    def __init__(self, mark: bytes) -> None:
        self.present = set(packs_of(mark, 3))

    def remove(self, *_: object) -> None:
        """Remove everything."""
        self.present = set()

    def packs(self) -> set[bytes]:
        """The packs."""
        return set(self.present)

    def remove_pack(self, pack: bytes) -> None:
        """Remove a pack."""
        self.present.remove(pack)


@pytest.fixture
def promised(monkeypatch: pytest.MonkeyPatch) -> Promised:
    """The promise of the group: none at first."""
    promises = Promised()
    monkeypatch.setattr(group_list, "Promises", lambda _: promises)
    return promises


@pytest.fixture
def files(promised: Promised) -> Files:
    """A group with one file on two nodes."""
    model = Files(Cluster())
    model.put("a", "one", "n1", "n2")
    assert promised.replicas == 0
    return model


def test_a_replaced_file_stays_until_the_promise_holds_for_the_new_one(
    files: Files, promised: Promised
) -> None:
    """With one replica of two it stays, and can be read; with two it goes, and so does its note."""
    promised.replicas = 2
    files.put("a", "two")
    assert files.sweep() == 0
    assert files.cluster.nodes_of("one") == {"n1", "n2"}
    assert files.noted == {"a": 1}
    (former,) = files.formers("a")
    written = io.BytesIO()
    copy_former(files, former, written)
    assert written.getvalue() == b"one"

    files.cluster.store("two", "n1", "n3")
    assert files.sweep() == 1
    assert files.cluster.nodes_of("one") == set()
    assert files.noted == {}
    assert files.cluster.nodes_of("two") == {"n1", "n3"}


def test_a_replica_with_other_bytes_is_no_replacement(files: Files) -> None:
    """Without a promise one replica suffices, of which the bytes are read."""
    files.put("a", "two")
    sound = dict(files.cluster.objects[files.entry("a").name])
    files.cluster.objects[files.entry("a").name] = {"n1": b"too"}
    assert files.sweep() == 0
    assert files.cluster.nodes_of("one") == {"n1", "n2"}
    files.cluster.objects[files.entry("a").name] = sound
    assert files.sweep() == 1
    assert files.cluster.nodes_of("one") == set()


def test_a_list_with_one_replica_has_no_notes(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """The replaced file is destroyed at once."""
    monkeypatch.setattr(Files, "is_replicated", False)
    files.put("a", "two")
    assert files.cluster.nodes_of("one") == set()
    assert files.noted == {}


def test_a_file_whose_path_another_one_takes_stays_until_that_one_is_kept(files: Files) -> None:
    """Moving is replacing."""
    files.put("b", "two")
    files.move({"b": "a"})
    assert files.noted == {"a": 1}
    assert files.cluster.nodes_of("one") == {"n1", "n2"}
    assert files.sweep() == 1
    assert files.cluster.nodes_of("one") == set()


def test_a_note_of_a_listed_file_destroys_nothing(files: Files) -> None:
    """Whatever brought it into the catalogue, as the repair of one."""
    note = Note(files.entry("a"), b"", 1)
    files.edit(lambda tree: tree.entries, None, lambda _: [note])
    assert files.sweep() == 0
    assert files.cluster.nodes_of("one") == {"n1", "n2"}


def test_a_removed_file_goes_at_once_with_the_versions_before_it(files: Files, promised: Promised) -> None:
    """The user said so, whatever is promised."""
    promised.replicas = 2
    files.put("a", "two")
    files.remove(["a"])
    assert files.tree().entries == ()
    assert files.noted == {}
    assert files.cluster.nodes_of("one") == files.cluster.nodes_of("two") == set()


def test_a_removed_file_leaves_no_replica_on_a_node_that_was_away(files: Files) -> None:
    """It is not listed any more; its note remains until the node is back."""
    files.cluster.away = {"n2"}
    files.remove(["a"])
    assert files.tree().entries == ()
    assert files.noted == {"a": 0}
    assert files.formers("a") == [], "the user removed it"
    files.cluster.away = set()
    assert files.cluster.nodes_of("one") == {"n2"}
    assert files.sweep() == 1
    assert files.cluster.nodes_of("one") == set()
    assert files.noted == {}


@pytest.mark.parametrize("end", ["remove", "discard", "drop"])
def test_a_replica_that_is_being_made_meanwhile_is_destroyed_too(
    files: Files, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """A keeper finishes its replica while the one that was found is destroyed."""
    destroyed = Replica.destroy

    def copied(replica: Replica) -> None:
        there = files.cluster.objects[replica.name]
        if replica.node == "n1" and "n3" not in there:
            there["n3"] = there["n1"]
        destroyed(replica)

    monkeypatch.setattr(Replica, "destroy", copied)
    upload = PartsUpload(files, "u", None)
    name, _, digest = files.cluster.store("part", "n1")
    upload._parts.append(Part(name, digest))
    if end == "remove":
        files.remove(["a"])
        assert files.cluster.nodes_of("one") == set()
    elif end == "discard":
        upload.discard()
        assert files.cluster.nodes_of("part") == set()
    else:
        upload.drop_page(Part(name, digest))
        assert files.cluster.nodes_of("part") == set()


@pytest.mark.parametrize("lost", [UnreachableError("the answer was lost"), KeyboardInterrupt()])
@pytest.mark.parametrize("end", ["suspend", "discard"])
def test_what_may_be_listed_is_not_destroyed(
    files: Files, monkeypatch: pytest.MonkeyPatch, end: str, lost: BaseException
) -> None:
    """The answer to the write was lost: others may see the files, whatever the program does now."""
    edit = Files.edit

    def answered_to_nobody(*arguments: object) -> None:
        edit(*arguments)  # type: ignore[arg-type] # those of any edit
        raise lost

    staged = StagedFiles(files)
    staged.add_object("b", *files.cluster.store("new", "n1"))
    monkeypatch.setattr(Files, "edit", answered_to_nobody)
    with pytest.raises(type(lost)):
        staged.publish()
    monkeypatch.undo()
    getattr(staged, end)()
    assert files.tree().is_file("b")
    assert files.cluster.nodes_of("new") == {"n1"}


@pytest.mark.parametrize("is_replicated", [False, True])
def test_a_file_that_comes_back_from_its_store_meanwhile_is_removed(
    files: Files, monkeypatch: pytest.MonkeyPatch, *, is_replicated: bool
) -> None:
    """It is the same file, in other objects."""
    monkeypatch.setattr(Files, "is_replicated", is_replicated)
    entry = files.entry("a")
    name = blake3(b"other name").digest()
    files.cluster.objects[name] = {"n1": b"one"}
    removed = Files._remove

    def moved(self: Files, entries: list[CatalogueEntry]) -> None:
        if name in files.cluster.objects and entries[0].name != name:
            back = msgspec.structs.replace(entry, name=name)
            files.edit(lambda _: [back], None, lambda tree: tree.notes)
        removed(self, entries)

    monkeypatch.setattr(Files, "_remove", moved)
    files.remove(["a"])
    assert files.tree().entries == ()
    assert files.cluster.objects[name] == {}


def test_without_notes_a_removed_file_stays_listed_while_a_node_is_away(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else would know of its replica there."""
    monkeypatch.setattr(Files, "is_replicated", False)
    files.cluster.away = {"n2"}
    with pytest.raises(UnreachableError, match="files stay"):
        files.remove(["a"])
    assert files.tree().is_file("a")


def test_a_program_that_is_lost_after_the_removal_leaves_a_note(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is destroyed before the note is written."""

    def lost(*_: object, **__: object) -> None:
        assert files.noted == {"a": 0}
        raise KeyboardInterrupt

    monkeypatch.setattr(group_list, "destroy", lost)
    with pytest.raises(KeyboardInterrupt):
        files.remove(["a"])
    monkeypatch.undo()
    assert files.noted == {"a": 0}


def test_an_object_that_may_not_be_destroyed_changes_nothing(files: Files) -> None:
    """The file stays listed, without a note."""
    files.cluster.protected = {files.entry("a").name}
    with pytest.raises(NotPermittedError):
        files.remove(["a"])
    assert files.tree().is_file("a")
    assert files.noted == {}


@pytest.mark.parametrize(("replicas", "left"), [(0, {}), (1, {"a": 1})])
def test_old_notes_of_a_group_without_a_promise_are_executed_by_the_next_change(
    files: Files, promised: Promised, monkeypatch: pytest.MonkeyPatch, replicas: int, left: dict[str, int]
) -> None:
    """Where a promise is, the keeper does it."""
    promised.replicas = replicas
    files.put("a", "two")
    files.put("b", "three")
    assert files.noted == {"a": 1}
    monkeypatch.setattr(limits, "NOTE_SWEEP_MS", -1_000)
    files.put("c", "four")
    assert files.noted == left


def test_an_error_after_the_change_is_none_of_the_change(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is removed, and its note remains."""

    def lost(*_: object, **__: object) -> None:
        raise UnreachableError("the connection ended")

    monkeypatch.setattr(group_list, "destroy", lost)
    files.remove(["a"])
    assert files.noted == {"a": 0}


@pytest.fixture
def store(files: Files, promised: Promised, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store with the packs of a file, in a group with a promise of two replicas."""
    tier = Tiered("/s", b"\x0c" * 32, stored=True)
    tiered = CatalogueEntry("t", b"\x07" * 32, 3, 9, b"\x08" * 32, tier=tier)
    files.edit(lambda tree: [*tree.entries, tiered])
    promised.replicas = 2
    store = Store(tier.mark)
    monkeypatch.setattr(tier_store, "known_store", lambda *_: store)
    monkeypatch.setattr(Files, "list_is_complete", lambda _: True)
    return store


def test_what_a_store_has_of_a_former_file_goes_after_the_replacement_is_kept(
    files: Files, store: Store
) -> None:
    """The packs are the last safe copy until then, also for pruning."""
    files.put("t", "two")
    assert files.sweep() == 0
    assert prune(files, cast("TierStore", store)) == 0
    assert store.present
    files.cluster.store("two", "n1", "n2")
    assert files.sweep() == 1
    assert not store.present
    assert files.noted == {}


def test_a_removal_that_fails_leaves_what_the_store_has(
    files: Files, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is listed still, and its bytes are in the store alone."""

    def fail(*_: object) -> None:
        raise UnreachableError("too few replicas of the list answer")

    with monkeypatch.context() as patch:
        patch.setattr(Files, "edit", fail)
        with pytest.raises(UnreachableError):
            files.remove(["t"])
    assert store.present
    assert files.tree().is_file("t")
    files.remove(["t"])
    assert not store.present
    assert files.noted == {}


def test_a_removal_leaves_the_bytes_of_a_file_that_came_back(files: Files, store: Store) -> None:
    """The file is listed still, in other objects, and the store may have the only safe copy."""
    entry = files.entry("t")
    back = msgspec.structs.replace(entry, name=blake3(b"other name").digest())
    files.edit(lambda tree: [back if listed.name == entry.name else listed for listed in tree.entries])
    due = files.unlist([entry])
    assert due is not None
    files.remove_stored(due, [entry])
    assert store.present
    assert files.moved([entry]) == [back]


def test_a_removal_tells_what_a_store_keeps(
    files: Files, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is removed, and its objects are destroyed."""

    def fail(*_: object) -> None:
        raise OSError(5, "no answer")

    monkeypatch.setattr(store, "remove", fail)
    with pytest.raises(UnreachableError, match=r"no answer.*dios tier prune"):
        files.remove(["t"])
    assert not files.tree().is_file("t")
    assert prune(files, cast("TierStore", store)) > 0
    assert not store.present


def test_a_store_that_this_machine_does_not_know_keeps_its_files(
    files: Files, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is changed."""

    def unknown(*_: object) -> Store:
        raise InvalidError("no such store")

    monkeypatch.setattr(tier_store, "known_store", unknown)
    with pytest.raises(InvalidError, match="no such store"):
        files.remove(["t", "a"])
    assert files.tree().is_file("t")
    assert files.tree().is_file("a")
    assert store.present


def test_the_next_change_executes_old_notes_of_files_in_a_store(
    files: Files, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keeper cannot: it has no key of the store."""
    files.put("t", "two", "n1", "n2")
    assert store.present
    monkeypatch.setattr(limits, "NOTE_SWEEP_MS", -1_000)
    files.put("b", "three")
    assert not store.present


def test_objects_that_a_stored_file_does_not_need_have_a_note_until_they_are_destroyed(files: Files) -> None:
    """A node that is away keeps the note."""
    needed, spare = files.cluster.store("two", "n1"), files.cluster.store("spare", "n2")
    staged = StagedFiles(files)
    staged.add_object("b", *spare)
    staged.add_object("b", *needed)
    files.cluster.away = {"n2"}
    staged.publish()
    assert files.noted == {"b": 0}
    files.cluster.away = set()
    files.sweep()
    assert files.cluster.nodes_of("spare") == set()
    assert files.cluster.nodes_of("two") == {"n1"}


def test_unfinished_files_that_are_removed_have_notes_of_their_parts(files: Files) -> None:
    """They and their parts go in the same write."""
    name, _, _ = files.cluster.store("part", "n1")
    begun = UnfinishedFile("u", bytes(16), 0, 1, 4, pack_parts([Part(name, b"")]))
    files.edit(lambda tree: tree.entries, lambda _: [begun])
    due = files.unlist([], ["u"])
    assert due is not None
    assert [note.former.local_names for note in due] == [[name]]
    assert files.noted == {"u": 0}
    assert files.tree().unfinished == {}


def test_a_program_destroys_no_part_that_another_one_has_taken_over(files: Files) -> None:
    """Neither while it is a part of another unfinished file, nor of the file that has the path."""
    upload = PartsUpload(files, "u", None)
    name, size, digest = files.cluster.store("part", "n1")
    upload._parts.append(Part(name, digest))
    other = UnfinishedFile("u", b"\x01" * 16, 0, 1, 4, pack_parts([Part(name, digest)]))
    files.edit(lambda tree: tree.entries, lambda _: [other])
    upload.discard()
    assert files.cluster.nodes_of("part") == {"n1"}
    assert files.tree().unfinished == {"u": other}
    files.edit(lambda tree: [*tree.entries, CatalogueEntry("u", name, size, 1, digest)], lambda _: [])
    upload.discard()
    assert files.cluster.nodes_of("part") == {"n1"}
    files.forget([files.entry("u")])
    upload.discard()
    assert files.cluster.nodes_of("part") == set()


def test_objects_that_were_made_while_another_run_took_the_path_are_destroyed(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other run does not know of them. A node that is away keeps the note."""
    numbers = count()

    def create(*_: object, **__: object) -> Replica:
        name, _size, _digest = files.cluster.store(f"part {next(numbers)}", "n2")
        files.edit(lambda tree: tree.entries, lambda _: [other])
        files.cluster.away = {"n2"}
        return Replica(files.cluster, name, "n2")

    monkeypatch.setattr(files.cluster, "create", create)
    own = UnfinishedFile("u", b"\x02" * 16, 0, 1, 4, b"")
    other = UnfinishedFile("u", b"\x01" * 16, 0, 1, 4, pack_parts([Part(b"\x02" * 32, b"")]))
    files.edit(lambda tree: tree.entries, lambda _: [own])
    upload = PartsUpload(files, "u", None)
    with pytest.raises(Conflict, match="another program"):
        upload.store(MemorySource(memoryview(b"bytes")))
    assert files.cluster.nodes_of("part 0") == {"n2"}
    upload.note()
    assert files.noted == {"u": 0}
    assert files.tree().unfinished == {"u": other}
    files.cluster.away = set()
    files.sweep()
    assert files.cluster.nodes_of("part 0") == set()


def test_a_run_whose_parts_another_one_has_published_lists_nothing(files: Files) -> None:
    """Two readers bring the same file back: the parts of the first one are those of the file now."""
    name, size, digest = files.cluster.store("part", "n1")
    upload = PartsUpload(files, "u", size)
    upload._parts.append(Part(name, digest))
    upload.note()
    assert set(files.tree().unfinished) == {"u"}
    files.edit(lambda tree: [*tree.entries, CatalogueEntry("u", name, size, 1, digest)], lambda _: [])
    upload.note()
    assert files.tree().unfinished == {}
    assert files.cluster.nodes_of("part") == {"n1"}


def test_a_run_that_others_were_faster_than_is_listed_later(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list that others change without a pause is no sign that another run has the path."""
    upload = PartsUpload(files, "u", None)
    name, _, digest = files.cluster.store("part", "n1")
    upload._parts.append(Part(name, digest))

    def overtaken(_: object) -> list[UnfinishedFile]:
        raise Conflict("others were faster")

    with monkeypatch.context() as patch:
        patch.setattr(upload, "_with_own", overtaken)
        upload.note()
    upload.note()
    assert set(files.tree().unfinished) == {"u"}


@pytest.mark.parametrize("state", ["present", "former", "moved"])
def test_the_objects_of_a_file_are_never_of_no_use(files: Files, promised: Promised, state: str) -> None:
    """Also if an unfinished file names them, which a run has left that was overtaken."""
    promised.replicas = 2
    entry = files.entry("a")
    stale = UnfinishedFile("a", b"\x01" * 16, 0, 1, 4, pack_parts([Part(entry.name, entry.digest)]))
    files.edit(lambda tree: tree.entries, lambda _: [stale], lambda tree: tree.notes)
    if state == "former":
        files.put("a", "two", "n1")
    elif state == "moved":
        files.move({"a": "b"})
    files.edit(lambda tree: tree.entries, lambda _: [stale], lambda tree: tree.notes)
    upload = PartsUpload(files, "a", None)
    upload.begin()
    upload._destroy([entry.name])
    upload.discard()
    assert files.cluster.nodes_of("one") == {"n1", "n2"}


@pytest.mark.parametrize("noted_digest", [False, True])
def test_parts_on_a_node_that_is_away_have_a_note_when_a_later_run_needs_them_not(
    files: Files, *, noted_digest: bool
) -> None:
    """A part that cannot be found may still be there: its name is forgotten when it is destroyed."""
    name, size, digest = files.cluster.store("part", "n2")
    earlier = Part(name, digest if noted_digest else b"")
    begun = UnfinishedFile("u", b"\x01" * 16, 0, 1, limits.FILE_PART_BYTES, pack_parts([earlier]))
    files.edit(lambda tree: tree.entries, lambda _: [begun])
    files.cluster.away = {"n2"}
    upload = PartsUpload(files, "u", size)
    with pytest.raises(LimitError):
        upload.store(MemorySource(memoryview(b"part")))
    assert name in upload.unused()
    upload.note()
    assert files.noted == {"u": 0}
    files.cluster.away = set()
    files.sweep()
    assert files.cluster.nodes_of("part") == set()
    assert files.noted == {}


def test_parts_that_are_dropped_have_a_note_until_they_are_destroyed(files: Files) -> None:
    """A node that is away keeps the note."""
    upload = PartsUpload(files, "u", None)
    name, _, digest = files.cluster.store("part", "n2")
    upload._parts.append(Part(name, digest))
    files.cluster.away = {"n2"}
    upload.drop_page(Part(name, digest))
    upload.note()
    assert files.noted == {"u": 0}
    files.cluster.away = set()
    files.sweep()
    assert files.cluster.nodes_of("part") == set()


def test_a_former_file_is_read_from_a_replica_that_has_its_bytes(files: Files) -> None:
    """A damaged replica is passed over; if all are, the error names them."""
    files.put("a", "two")
    (former,) = files.formers("a")
    files.cluster.objects[former.name]["n1"] = b"xxx"
    written = io.BytesIO()
    copy_former(files, former, written)
    assert written.getvalue() == b"one"
    files.cluster.objects[former.name]["n2"] = b"xxx"
    with pytest.raises(DamagedError, match=r"the replica on n1 has other bytes.*, on n2 has other bytes"):
        copy_former(files, former, written)
    files.cluster.objects[former.name].clear()
    with pytest.raises(StaleError):
        copy_former(files, former, written)


@pytest.mark.parametrize("error", [BadReferenceError("unknown"), StaleError("deleted")])
@pytest.mark.parametrize("times", [1, 2])
def test_a_refused_reference_is_no_destroyed_object(files: Files, error: DiosError, times: int) -> None:
    """Its node may have started since the look: a second look finds the object, else its note stays."""
    files.put("b", "second")
    files.cluster.refusals = [error] * times
    files.remove(["b"])
    assert files.cluster.nodes_of("second") == (set() if times == 1 else {"n1"})
    assert files.noted == ({} if times == 1 else {"b": 0})
    files.sweep()
    assert not files.cluster.nodes_of("second")
    assert not files.noted


# -- files that are in a store, too -----------------------------------------------------------------
WHOLE = b"aaaabbbbcc"
PIECES = (b"aaaa", b"bbbb", b"cc")


def in_parts(files: Files, mark: str, part_bytes: int = 4) -> CatalogueEntry:
    """Store a file in parts, whose store has it, too."""
    pieces = [WHOLE[start : start + part_bytes] for start in range(0, len(WHOLE), part_bytes)]
    names = [blake3(f"{mark} {number}".encode()).digest() for number in range(len(pieces))]
    files.cluster.objects |= {name: {"n1": piece} for name, piece in zip(names, pieces, strict=True)}
    parts = (Part(name, blake3(piece).digest()) for name, piece in zip(names, pieces, strict=True))
    tier = Tiered(Store.place, bytes(32), stored=False, left=True, manifest=b"a list")
    return CatalogueEntry(
        "large", names[0], len(WHOLE), 0, blake3(WHOLE).digest(), part_bytes, pack_parts(parts), tier
    )


@pytest.mark.parametrize("part_bytes", [3, 4])
@pytest.mark.parametrize("number", range(len(PIECES)))
def test_a_copy_goes_on_with_what_the_store_has(
    files: Files, monkeypatch: pytest.MonkeyPatch, number: int, part_bytes: int
) -> None:
    """A part without a sound replica is fetched again, and what was written before is not written twice."""
    entry, again = in_parts(files, "first"), in_parts(files, "again", part_bytes)
    files.edit(lambda tree: [*tree.entries, entry])
    files.cluster.objects[entry.parts()[number].name] = {"n1": b"****"[: len(PIECES[number])]}
    monkeypatch.setattr(files, "fetched_again", lambda _: again)
    written = io.BytesIO()
    copy_out(files, entry, written)
    assert written.getvalue() == WHOLE


class ClosedOutput:
    """An output whose far end is away, and which notes what it was given."""

    def __init__(self) -> None:
        self.given: list[bytes] = []

    def write(self, data: memoryview, /) -> None:
        """Note the bytes, and raise an error."""
        self.given.append(bytes(data))
        raise UnreachableError("the reader is away")


def test_an_output_that_fails_is_no_damaged_file(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error ends the copy: nothing is fetched, and no byte is written after it."""
    entry, output, fetches = in_parts(files, "first"), ClosedOutput(), list[CatalogueEntry]()
    files.edit(lambda tree: [*tree.entries, entry])
    monkeypatch.setattr(files, "fetched_again", fetches.append)
    with pytest.raises(UnreachableError):
        copy_out(files, entry, output)
    assert (fetches, output.given) == ([], [PIECES[0]])


def test_a_copy_does_not_go_on_with_another_file(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was replaced while its first parts were written."""
    entry = in_parts(files, "first")
    files.edit(lambda tree: [*tree.entries, entry])
    files.cluster.objects[entry.parts()[1].name] = {"n1": b"****"}
    monkeypatch.setattr(files, "fetched_again", lambda _: files.entry("a"))
    written = io.BytesIO()
    with pytest.raises(StaleError):
        copy_out(files, entry, written)
    assert written.getvalue() == PIECES[0]

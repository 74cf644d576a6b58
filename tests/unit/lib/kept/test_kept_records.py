"""The records of promises, and the order in which a keeper looks at objects."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dios import limits
from dios.errors import DamagedError, InvalidError, LimitError
from dios.lib import catalogue
from dios.lib.catalogue import CatalogueEntry
from dios.lib.kept import records
from dios.lib.kept.objects import LookOrder, PromisedObject
from dios.lib.kept.records import KeptPromise, KeptState
from dios.lib.kept.versions import Seen


def promise(number: int = 1, replicas: int = 3, version: int = 1, *, is_single: bool = False) -> KeptPromise:
    """A promise for a group, or for an object of it."""
    return KeptPromise(
        version, bytes(32), number.to_bytes(32, "big"), "papers", replicas, is_single=is_single
    )


def state(*promises: KeptPromise, **seen: tuple[Seen, ...]) -> KeptState:
    """A state with these promises and seen versions."""
    return KeptState({kept.key: kept for kept in promises}, seen)


def test_promises_and_versions_survive_their_stored_form() -> None:
    """Also the largest object ids, and no bytes are an empty state."""
    whole = state(promise(), promise(2, is_single=True), abc=(Seen(3, b"d" * 16, 2**63 - 1),))
    assert records.decode(records.encode(whole)) == whole
    assert records.decode(b"") == KeptState()


@pytest.mark.parametrize(
    "data",
    [b"\xc1", b"\x90", msgspec.msgpack.encode((2, (), {})), b"\x93\x01\x90\x81\xa1a\x91\x93\xff\xc4\x00\x00"],
)
def test_bytes_that_are_no_records_are_refused(data: bytes) -> None:
    """A newer format, a wrong type and a negative version."""
    with pytest.raises(DamagedError):
        records.decode(data)


def test_the_later_promise_wins_on_every_node_and_versions_unite() -> None:
    """In whatever order copies are merged; a clock that goes back does not undo a change."""
    earlier = state(promise(replicas=2, version=5), a=(Seen(1, b"x", 1),))
    other = state(promise(replicas=3, version=6), a=(Seen(2, b"y", 1),), b=(Seen(1, b"z", 2),))
    merged = records.merged([earlier, other])
    assert merged == records.merged([other, earlier, merged])
    assert merged.promises == other.promises
    assert merged.seen == {"a": (Seen(1, b"x", 1), Seen(2, b"y", 1)), "b": (Seen(1, b"z", 2),)}
    future = state(promise(version=2**62))
    again = records.with_promise(future, promise(replicas=1))
    assert records.merged([future, again]).promises == again.promises


def test_a_single_promise_and_that_of_its_group_are_different_ones() -> None:
    """The one is known by the object, the other by the group."""
    group, single = promise(), promise(is_single=True)
    assert group.key != single.key
    assert b"\x00\x01" not in repr(group).encode()


def test_the_versions_of_objects_that_were_written_often_are_kept_first() -> None:
    """Beyond the bound the objects whose versions are low are forgotten; that makes conflicts, no losses."""
    many = {f"o{number}": (Seen(1, b"d", number),) for number in range(limits.KEPT_WRITTEN_MAX)}
    left = records.decode(records.encode(KeptState(seen={**many, "z": (Seen(2, b"d", 1),)}))).seen
    assert len(left) == limits.KEPT_WRITTEN_MAX
    assert "z" in left


def test_the_number_of_promises_is_limited() -> None:
    """Promises that were taken back do not count, and the oldest are forgotten."""
    many = [promise(number, is_single=True) for number in range(limits.KEPT_PROMISES_MAX + 1)]
    with pytest.raises(LimitError, match="group"):
        records.encode(state(*many))
    ended = [promise(number, 0, number, is_single=True) for number in range(limits.KEPT_ENDED_KEPT + 5)]
    left = records.decode(records.encode(state(*ended, *many[-9:]))).promises.values()
    assert len([kept for kept in left if not kept.replicas]) <= limits.KEPT_ENDED_KEPT


def test_ended_promises_for_groups_outlive_those_for_objects() -> None:
    """The lists of these groups may have notes of former files, which would be stranded."""
    groups = [KeptPromise(1, number.to_bytes(32, "little"), bytes(32), "g", 0) for number in range(1, 10)]
    objects = [promise(number, 0, 2, is_single=True) for number in range(limits.KEPT_ENDED_KEPT + 5)]
    left = records.decode(records.encode(state(*groups, *objects))).promises
    assert {group.key for group in groups} <= left.keys()
    assert len(left) == len(groups) + limits.KEPT_ENDED_KEPT


@pytest.mark.parametrize("replicas", [0, limits.KEPT_REPLICAS_MAX + 1])
def test_impossible_numbers_are_refused(replicas: int) -> None:
    """No replicas, or more than nodes can be expected."""
    with pytest.raises(InvalidError):
        records.checked(replicas)


# -- the order of looks ------------------------------------------------------------------------------
def names(*numbers: int) -> dict[bytes, PromisedObject]:
    """Objects of one promise."""
    return {number.to_bytes(32, "big"): PromisedObject("p") for number in numbers}


@given(st.integers(0, 200), st.integers(1, 20))
def test_a_round_looks_at_few_objects_and_a_hurry_reaches_all(count: int, rounds: int) -> None:
    """However many there are, and each in turn."""
    order = LookOrder()
    list(order.replace(names(*range(count))))
    seen: set[bytes] = set()
    for _ in range(-(-count // limits.KEPT_LOOKS_MAX)):
        taken = list(order.take(0))
        assert len(taken) == len(set(taken)) <= limits.KEPT_LOOKS_MAX
        seen.update(taken)
    assert len(seen) == len(order) == count
    assert not order.hurried
    for _ in range(rounds):
        assert len(list(order.take(0))) <= limits.KEPT_LOOKS


def test_new_and_short_objects_come_first_and_removed_ones_not_at_all() -> None:
    """An object of which a copy is missing is looked at again when its time has come."""
    order = LookOrder()
    list(order.replace(names(*range(100))))
    while order.hurried:
        list(order.take(0))
    list(order.replace(names(*range(101))))
    assert (100).to_bytes(32, "big") in list(order.take(0))
    short = (50).to_bytes(32, "big")
    order.again(short, 5.0)
    assert short in list(order.take(5.0))
    list(order.replace(names(1)))
    order.hurry()
    taken = [name for _ in range(9) for name in order.take(9.0)]
    assert set(taken) == set(names(1))
    assert order.covered(short) is None


def test_a_change_of_the_list_costs_the_looks_at_what_has_changed() -> None:
    """A new object, and one that moved to another promise, are looked at, and the others in their turn."""
    order = LookOrder()
    list(order.replace(names(*range(1_000))))
    while order.hurried:
        list(order.take(0))
    moved, new = (500).to_bytes(32, "big"), (1_000).to_bytes(32, "big")
    list(order.replace(names(*range(1_001)) | {moved: PromisedObject("another")}))
    taken = list(order.take(1.0))
    assert {moved, new} <= set(taken)
    assert len(taken) <= limits.KEPT_LOOKS_MAX + 1
    assert not order.hurried


def test_a_catalogue_can_be_read_entry_by_entry() -> None:
    """With the same entries as at once, and the same refusals."""
    entries = [CatalogueEntry(f"f{number}", bytes(32), number, 1) for number in range(40)]
    data = catalogue.encode(entries)
    assert tuple(catalogue.decode_slowly(data)) == catalogue.decode(data)
    assert list(catalogue.decode_slowly(b"")) == []
    huge = msgspec.msgpack.encode((1, [0] * (limits.CATALOGUE_ENTRIES_MAX + 1)))
    for bad in (huge, b"\xc1", b"\x92\x03\x90", data[:-1]):
        with pytest.raises(DamagedError):
            list(catalogue.decode_slowly(bad))

"""The next change of the members of a list: a function of what was read, the nodes and the promise."""

from __future__ import annotations

import pytest

from dios.errors import DamagedError, UnreachableError
from dios.lib.kept.decisions import KeptWish, Place
from dios.lib.kept.lists import ListChange, list_wish, next_change
from dios.lib.replicated_record.frame import Member, Value
from dios.lib.replicated_record.protocol import Reading

ON = {name: Member(number, name) for number, name in enumerate("abcde", 1)}


def places(alive: str, *, away: str = "", lost: str = "", draining: str = "") -> list[Place]:
    """Return nodes: those that are alive, and those that are not."""
    return [
        *(Place(name, "", draining=name in draining) for name in alive),
        *(Place(name, "", usable=False, away=True) for name in away),
        *(Place(name, "", usable=False) for name in lost),
    ]


def reading(
    members: str,
    sound: str = "",
    holders: str = "",
    unread: dict[str, UnreachableError | DamagedError] | None = None,
) -> Reading:
    """Return what a keeper has read of a list with these members."""
    sound = sound or members
    value = Value((3, 0), tuple(ON[name] for name in members), (), 5, 0, b"", b"")
    return Reading(
        value,
        tuple(ON[name] for name in holders or sound),
        decided=True,
        is_plain=False,
        sound=tuple(ON[name] for name in sound),
        unread=dict(unread or {}),
    )


def change(read: Reading, nodes: list[Place], wish: int = 3, present: str | None = None) -> ListChange:
    """Return the next change of a list; ``present`` are the replicas that were found."""
    there = [member.node for member in read.sound] if present is None else present
    return next_change(read, [ON[name].object_id for name in there], nodes, KeptWish(wish), key="k")


def removed(planned: ListChange) -> str:
    """Return the nodes of the members to remove."""
    return "".join(sorted(member.node for member in planned.remove))


@pytest.mark.parametrize(
    ("replicas", "nodes", "wanted"),
    [(1, "abc", 1), (2, "ab", 2), (2, "abc", 3), (3, "abcde", 3), (5, "abc", 5), (2, "abcde", 3)],
)
def test_a_list_has_three_replicas_where_there_are_three_nodes(
    replicas: int, nodes: str, wanted: int
) -> None:
    """With two, the loss of either would leave no majority."""
    assert list_wish(replicas, places(nodes), apart=False).replicas == wanted


def test_a_list_that_is_kept_is_left_alone() -> None:
    """Three members on three nodes have the value: nothing is done."""
    kept = change(reading("abc"), places("abcde"))
    assert (kept.target, removed(kept), kept.settle, kept.strays) == (None, "", False, ())


def test_a_missing_replica_is_added_on_a_free_node() -> None:
    """A list with two members gets a third one."""
    assert change(reading("ab"), places("abc")).target == "c"


def test_members_with_an_earlier_value_get_the_present_one() -> None:
    """A member that a change did not reach accepts it later."""
    assert change(reading("abc", holders="ab"), places("abc")).settle


def test_a_node_that_is_away_keeps_its_membership() -> None:
    """A node may come back with its replica, and then nothing has to be copied."""
    waiting = change(reading("abc", sound="ab"), places("abe", away="c"))
    assert (waiting.target, removed(waiting)) == (None, "")


@pytest.mark.parametrize(
    "nodes", [places("abe", lost="c"), places("abe")], ids=["silent too long", "forgotten"]
)
def test_a_lost_member_is_replaced(nodes: list[Place]) -> None:
    """A node beyond the grace time, or forgotten, does not come back."""
    replaced = change(reading("abc", sound="ab"), nodes)
    assert (replaced.target, removed(replaced)) == ("e", "c")


def test_a_lost_member_is_removed_even_if_no_node_takes_its_place() -> None:
    """Else the next loss would leave no majority."""
    smaller = change(reading("abc", sound="ab"), places("ab"), wish=2)
    assert (smaller.target, removed(smaller)) == (None, "c")


def test_a_damaged_replica_is_replaced_and_one_that_does_not_answer_now_is_not() -> None:
    """A failed read shows damage or nothing."""
    damaged = change(reading("abc", "ab", unread={"c": DamagedError("x")}), places("abcd"), present="abc")
    silent = change(reading("abc", "ab", unread={"c": UnreachableError("x")}), places("abcd"), present="abc")
    assert (damaged.target, removed(damaged)) == ("d", "c")
    assert removed(silent) == ""


def test_a_replica_that_its_node_does_not_have_any_more_is_replaced() -> None:
    """The node answers, and has no such object."""
    replaced = change(reading("abc", "ab"), places("abcd"), present="ab")
    assert replaced.target is not None
    assert removed(replaced) == "c"


def test_members_beyond_the_wish_are_removed_and_a_draining_node_loses_its_own_last() -> None:
    """A draining node has its replica until another one is there."""
    fewer = change(reading("abcd"), places("abcd"))
    assert len(fewer.remove) == 1
    leaving = change(reading("abc"), places("abcd", draining="a"))
    assert (leaving.target, removed(leaving)) == ("d", "")
    left = change(reading("abcd"), places("abcd", draining="a"))
    assert removed(left) == "a"


def test_the_last_members_are_never_all_removed() -> None:
    """The only replica stays on a draining node."""
    assert removed(change(reading("a", sound="a"), places("a", draining="a"), wish=1)) == ""


def test_replicas_that_are_no_members_are_strays() -> None:
    """A copy that was not added is reported by its object id."""
    assert change(reading("ab"), places("ab"), wish=2, present="abe").strays == (5,)

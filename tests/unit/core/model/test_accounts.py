"""The arithmetic of accounts and versions, by itself."""

from __future__ import annotations

import pytest

from dios.core.model.accounts import (
    UNLIMITED,
    Account,
    Version,
    buffer_version,
    charge_all,
    require_all,
    require_each,
)
from dios.core.model.records import PhysicalObject
from dios.errors import LimitError
from dios.ids import ObjectId, Principal
from dios.wire.messages import Bound
from dios.wire.types import Deletion, ObjectType, Resource, Scope

BYTES = Resource.BYTES


def chain(*bounds: int | None) -> list[Account]:
    """Accounts that each lead to the one before, with these limits on bytes."""
    accounts: list[Account] = []
    for number, bound in enumerate(bounds):
        above = accounts[-1] if accounts else None
        accounts.append(Account(Scope.TASK, f"t{number}", [Bound(BYTES, bound)], above))
    return accounts


def test_charges_go_up_the_chain() -> None:
    """What one uses, those above it use as well, and those below it do not."""
    top, middle, bottom = chain(None, None, None)
    middle.charge(BYTES, 5)
    assert [account.used[BYTES] for account in (top, middle, bottom)] == [5, 5, 0]
    bottom.charge(BYTES, 2)
    bottom.charge(BYTES, -1)
    assert [account.used[BYTES] for account in (top, middle, bottom)] == [6, 6, 1]


@pytest.mark.parametrize(
    ("bounds", "whose"), [((9, None, None), "t0"), ((None, 9, 99), "t1"), ((9, 9, 9), "t2")]
)
def test_the_first_limit_on_the_way_up_is_named(bounds: tuple[int | None, ...], whose: str) -> None:
    """A refusal names the nearest account that has no room; nothing is counted by asking."""
    bottom = chain(*bounds)[-1]
    bottom.charge(BYTES, 4)
    bottom.require(BYTES, 5)
    with pytest.raises(LimitError, match=f"task {whose} and all it starts is reached: 6 more"):
        bottom.require(BYTES, 6)
    assert bottom.used[BYTES] == 4


def test_nothing_more_is_always_possible() -> None:
    """Who asks for nothing, or gives back, is not refused above its limit."""
    (account,) = chain(10)
    account.charge(BYTES, 50)
    account.require(BYTES, 0)
    account.require(BYTES, -3)
    with pytest.raises(LimitError):
        account.require(BYTES, 1)


def test_left_is_the_least_on_the_way_up() -> None:
    """What is left is what the tightest account leaves; never less than nothing."""
    top, middle, bottom = chain(100, 30, None)
    middle.charge(BYTES, 20)
    assert (top.left(BYTES), bottom.left(BYTES)) == (80, 10)
    middle.charge(BYTES, 20)
    assert bottom.left(BYTES) == 0
    assert bottom.left(Resource.TASKS) == UNLIMITED


def limited(account: Account) -> dict[Resource, int]:
    """What of an account is limited, and to how much."""
    bounds = account.row("x").limits
    return {resource: bounds[resource] or 0 for resource in Resource if bounds[resource] is not None}


def test_bind_and_rebind() -> None:
    """Binding changes what it names, None lifts; binding anew forgets the rest."""
    account = Account(Scope.GROUP, "g", [Bound(BYTES, 1), Bound(Resource.TASKS, 2)])
    account.bind([Bound(BYTES, None)])
    assert limited(account) == {Resource.TASKS: 2}
    account.rebind([Bound(Resource.OBJECTS, 0)])
    assert limited(account) == {Resource.OBJECTS: 0}


def test_generations_are_counted() -> None:
    """A principal's own account is of no generation, and each below it of one more."""
    assert [account.generation for account in chain(None, None, None)] == [0, 1, 2]


def test_several_accounts() -> None:
    """Requiring of several refuses if one has no room; of each, as often as it is named."""
    account, other = chain(10)[0], chain(2)[0]
    charge_all((account, other), BYTES, 1)
    require_all((account, other), BYTES, 1)
    with pytest.raises(LimitError):
        require_all((account, other), BYTES, 2)
    require_each([account, account, account, other], BYTES)
    with pytest.raises(LimitError):
        require_each([account, other, other], BYTES)


def first_version(account: Account) -> Version:
    """The first version of an object of somebody's."""
    number, principal = ObjectId(1), Principal("uid:7")
    kind, deletion = ObjectType.DURABLE_BLOB, Deletion.IMMEDIATE
    return PhysicalObject(number, kind, None, (), principal, deletion=deletion, accounts=(account,)).version


def test_a_version_counts_while_it_is_held() -> None:
    """Bytes count until the object has moved on and the last holder let go, in whatever order."""
    for holders_first in (True, False):
        (account,) = chain(None)
        version = first_version(account)
        version.resize(10)
        version.hold().hold()
        version.release()
        if holders_first:
            version.release()
            assert account.used[BYTES] == 10
            version.supersede()
        else:
            version.supersede()
            assert account.used[BYTES] == 10
            version.release()
        assert account.used[BYTES] == 0


def test_a_shadow_counts_while_it_is_held() -> None:
    """The bytes of a buffer being written are nobody's version: they go with the buffer."""
    (account,) = chain(None)
    held = buffer_version(account, 7).hold()
    assert account.used[BYTES] == 7
    held.release()
    assert account.used[BYTES] == 0

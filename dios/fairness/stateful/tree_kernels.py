"""The compiled live tree of SDRF's users, which keeps them in order by handling crossings of neighbours.

``dios.fairness.live_tree`` is the tree for any other priority.

SDRF paper, section VI-C, over the lines of the user table: time advances as ``g`` falls. The tree is a treap
whose nodes link to their neighbours, with a heap of the pairs that will meet, the next one on top. When a
user's line changes, :func:`reposition` must follow before anything else happens to the tree.
"""

from __future__ import annotations

from typing import Final

from dios.fairness.stateful.user_table import (
    ABOVE,
    AFTER,
    BEFORE,
    EVENTS,
    FIRST,
    LEFT,
    NEAR,
    RIGHT,
    ROOT,
    SIZE,
    OrderTree,
    UserTable,
    compare_lines,
    crossing,
    top_line,
)
from dios.kernels import inlined_kernel, no_refcount_kernel

SCATTER: Final = 2654435761
"""A multiplier modulo 2^32 that gives every user a distinct, scattered rank, which balances the treap."""


@inlined_kernel
def precedes(table: UserTable, a: int, b: int, g: float) -> bool:
    """Return True if user ``a`` precedes ``b``: by priority, by priority shortly afterwards, by index."""
    first, r = top_line(table, a, g)
    second, q = top_line(table, b, g)
    if abs(first - second) > NEAR * (abs(first) + abs(second)):
        return bool(first < second)
    order = compare_lines(table, a, r, b, q, g)
    return order < 0 if order != 0 else a < b


@no_refcount_kernel
def sift(tree: OrderTree, user: int, slot: int) -> None:
    """Put a user into a slot of the heap, or move it up or down to its place from there."""
    heap, meets = tree.heap, tree.meets
    while slot > 0 and meets[heap[(slot - 1) >> 1]] < meets[user]:
        heap[slot] = heap[(slot - 1) >> 1]
        tree.slot[heap[slot]] = slot
        slot = (slot - 1) >> 1
    while 2 * slot + 1 < tree.state[SIZE]:
        below = 2 * slot + 1
        if below + 1 < tree.state[SIZE] and meets[heap[below + 1]] > meets[heap[below]]:
            below += 1
        if meets[heap[below]] <= meets[user]:
            break
        heap[slot] = heap[below]
        tree.slot[heap[slot]] = slot
        slot = below
    heap[slot] = user
    tree.slot[user] = slot


@inlined_kernel
def clear_meeting(tree: OrderTree, user: int) -> None:
    """Remove the meeting of a user with its successor from the heap."""
    slot = tree.slot[user]
    if slot >= 0:
        tree.slot[user] = -1
        tree.state[SIZE] -= 1
        last = tree.heap[tree.state[SIZE]]
        if last != user:
            sift(tree, last, slot)


@inlined_kernel
def set_meeting(table: UserTable, user: int) -> None:
    """UPDATEEVENT: record the ``g`` at which a user may meet its successor."""
    tree = table.tree
    clear_meeting(tree, user)
    after = tree.link[user, AFTER]
    if after >= 0:
        met = crossing(table, user, after, tree.since[0])
        if met > 0.0:
            tree.meets[user] = met
            tree.state[SIZE] += 1
            sift(tree, user, tree.state[SIZE] - 1)


@inlined_kernel
def replace_child(tree: OrderTree, above: int, old: int, new: int) -> None:
    """Replace ``old`` as a child of ``above`` by ``new``."""
    if above < 0:
        tree.state[ROOT] = new
    elif tree.link[above, LEFT] == old:
        tree.link[above, LEFT] = new
    else:
        tree.link[above, RIGHT] = new
    if new >= 0:
        tree.link[new, ABOVE] = above


@no_refcount_kernel
def rotate_up(tree: OrderTree, user: int) -> None:
    """Rotate a user above its parent."""
    link = tree.link
    above = link[user, ABOVE]
    side, other = (LEFT, RIGHT) if link[above, LEFT] == user else (RIGHT, LEFT)
    inner = link[user, other]
    link[above, side] = inner
    if inner >= 0:
        link[inner, ABOVE] = above
    replace_child(tree, link[above, ABOVE], above, user)
    link[user, other] = above
    link[above, ABOVE] = user


@inlined_kernel
def rank(user: int) -> int:
    """Return a user's rank in the treap; lower ranks are nearer to the root."""
    return (user * SCATTER) & 0xFFFFFFFF


@no_refcount_kernel
def insert(table: UserTable, user: int, g: float) -> None:
    """INSERT: add a user at its place in the order at ``g``, for which the whole tree must be correct."""
    tree, link = table.tree, table.tree.link
    above, below, first = -1, tree.state[ROOT], True
    while below >= 0:
        above, first = below, precedes(table, user, below, g)
        below = link[below, LEFT if first else RIGHT]
    before = above if above >= 0 and not first else (link[above, BEFORE] if above >= 0 else -1)
    after = above if above >= 0 and first else (link[above, AFTER] if above >= 0 else -1)
    link[user, LEFT] = link[user, RIGHT] = -1
    link[user, ABOVE], link[user, BEFORE], link[user, AFTER] = above, before, after
    tree.inside[user] = 1
    if above < 0:
        tree.state[ROOT] = user
    else:
        link[above, LEFT if first else RIGHT] = user
    while link[user, ABOVE] >= 0 and rank(link[user, ABOVE]) > rank(user):
        rotate_up(tree, user)
    if after >= 0:
        link[after, BEFORE] = user
    if before >= 0:
        link[before, AFTER] = user
        set_meeting(table, before)
    else:
        tree.state[FIRST] = user
    set_meeting(table, user)


@no_refcount_kernel
def remove(table: UserTable, user: int) -> None:
    """DELETE: remove a user; its neighbours are compared from the time of the last correct order on."""
    tree, link = table.tree, table.tree.link
    clear_meeting(tree, user)
    while link[user, LEFT] >= 0 or link[user, RIGHT] >= 0:
        left, right = link[user, LEFT], link[user, RIGHT]
        rotate_up(tree, left if right < 0 or (left >= 0 and rank(left) < rank(right)) else right)
    replace_child(tree, link[user, ABOVE], user, -1)
    before, after = link[user, BEFORE], link[user, AFTER]
    tree.inside[user] = 0
    if after >= 0:
        link[after, BEFORE] = before
    if before >= 0:
        link[before, AFTER] = after
        set_meeting(table, before)
    else:
        tree.state[FIRST] = after


@no_refcount_kernel
def advance_order(table: UserTable, g: float) -> None:
    """UPDATE: bring the order to ``g``. Users that may have met are removed and inserted again."""
    tree, loose = table.tree, -1
    while tree.state[SIZE] > 0 and tree.meets[tree.heap[0]] >= g:
        user = tree.heap[0]
        tree.state[EVENTS] += 1
        after = tree.link[user, AFTER]
        remove(table, user)
        remove(table, after)
        # The parent link of a removed user is free: use it to chain the users to insert again.
        tree.link[user, ABOVE], tree.link[after, ABOVE] = loose, user
        loose = after
    tree.since[0] = g
    while loose >= 0:
        following = tree.link[loose, ABOVE]
        insert(table, loose, g)
        loose = following


@inlined_kernel
def reposition(table: UserTable, user: int, g: float) -> None:
    """Move a user to its place after its line changed, or after it became active or inactive."""
    if table.tree.inside.size:
        if table.tree.inside[user]:
            remove(table, user)
        advance_order(table, g)
        if table.place[user] >= 0:
            insert(table, user, g)


@no_refcount_kernel
def rebuild(table: UserTable, seen: int, g: float) -> None:
    """Build the tree again, because every line has changed."""
    tree = table.tree
    if tree.inside.size:
        tree.inside[:] = 0
        tree.slot[:] = -1
        tree.state[ROOT] = tree.state[FIRST] = -1
        tree.state[SIZE] = 0
        tree.since[0] = g
        for user in range(seen):
            if table.place[user] >= 0:
                insert(table, user, g)

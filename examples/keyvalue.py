"""A replicated key-value store that loses one of its three replicas, and continues.

Run ``python examples/keyvalue.py n1 n2 n3`` on a cluster. Without names, there are three replicas on one
node, one of which is then destroyed. See docs/libraries.md.
"""

from __future__ import annotations

import sys

import dios
from dios.lib.channels import decode
from dios.lib.keyvalue import Plan, create_store, open_store


def main(hosts: list[str]) -> None:
    """Fill a store, lose a part of it, then read and write, and check that everything is there."""
    with dios.connect() as node:
        group = node.create_group()
        store = create_store(node, group, hosts=hosts or ["", "", ""], shards=4)
        for number in range(10):
            store.put(f"user/{number}", f"profile {number}".encode())
        print("kept:", len(list(store)), "profiles; the index has", len(hosts) or 3, "copies")
        if hosts:
            input("now stop one of them, and press Enter ")
        else:
            lose_one_copy(node, group, store.name)
        # Every member of the group with the store's name can open it.
        other = open_store(node, group, store.name)
        print("one copy is gone:", (other.get("user/7") or b"lost").decode())
        other.put("user/7", b"profile 7, changed")
        other.delete("user/0")
        print("and it goes on:", (store.get("user/7") or b"lost").decode(), "/", store.get("user/0"))
        print("left:", ", ".join(sorted(store)))


def lose_one_copy(node: dios.Node, group: dios.Group, name: bytes) -> None:
    """Destroy the first replica of each part of the store's index, as a lost disk would."""
    plan = node.find(name, group=group)
    if plan is not None:
        for names in decode(plan.read_bytes(), Plan).shards:
            copy = node.find(names[0], group=group)
            if copy is not None:
                copy.destroy()


if __name__ == "__main__":
    main(sys.argv[1:])

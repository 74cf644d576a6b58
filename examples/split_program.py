"""A program in two parts: a parent with all references, and a native helper with the data alone.

The parent is a task that holds a key and some lines. It has ``sort`` sort the lines, because a bug in a
helper that reads foreign input must not give away the key: the helper is a task of its own, behind its own
sandbox, with a reference to the lines and no other. Then the parent signs what came back.

Run ``DIOS_PROGRAMS=sort=/usr/bin/sort python examples/split_program.py`` without a node, or list ``sort`` in
the settings of yours. See docs/python-client.md#native-programs.
"""

from __future__ import annotations

import sys

import dios

PARENT = b"""
import hmac
import dios

node = dios.connect()
key, lines = node.input("key"), node.input("lines")
with node.run(
    dios.Program("", native="sort"),
    inputs={"lines": lines.restrict("read")},
    files=["lines"],
    args=["/inputs/lines"],
    label="helper",
) as helper:
    names = [handed.label for handed in node.describe(helper).inputs]
    ordered = b"".join(helper.console())
    helper.wait()
print("the helper has", ", ".join(names))
print(hmac.new(key.read_bytes(), ordered, "sha256").hexdigest()[:16], ordered.decode().split())
"""


def main() -> None:
    """Run the parent with a key and three lines, and print its output."""
    with (
        dios.connect(start=True) as node,
        node.create(dios.SHMEM_BLOB, data=b"a secret key") as key,
        node.create(dios.SHMEM_BLOB, data=b"pear\napple\nfig\n") as lines,
        node.run(
            PARENT,
            inputs={"key": key.restrict("read"), "lines": lines.restrict("read", "delegate")},
            label="parent",
        ) as task,
    ):
        for part in task.console():
            sys.stdout.write(part.decode())
        if not task.wait().ok:
            sys.exit("the parent failed")


if __name__ == "__main__":
    main()

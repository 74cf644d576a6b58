"""A native program as a task: ``sort`` sorts the lines of a file, behind the sandbox of a pure task.

Run ``DIOS_PROGRAMS=sort=/usr/bin/sort python examples/native_sort.py FILE`` without a node, or list ``sort``
in the settings of yours. The program has a copy of the file, its libraries, and nothing else of the machine.
See docs/python-client.md#native-programs.
"""

from __future__ import annotations

import sys
from pathlib import Path

import dios


def main() -> None:
    """Sort the file that the command line names, and print the result."""
    with (
        dios.connect(start=True) as node,
        node.create(dios.SHMEM_BLOB, data=Path(sys.argv[1]).read_bytes()) as lines,
        node.run(
            dios.Program("", native="sort"),
            inputs={"lines": lines.restrict("read")},
            files=["lines"],
            args=["-n", "/inputs/lines"],
            label="sort",
        ) as task,
    ):
        for part in task.console():
            sys.stdout.write(part.decode())
        if not task.wait().ok:
            sys.exit("sort failed")


if __name__ == "__main__":
    main()

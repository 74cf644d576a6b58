"""Salaries that a task may read and not pass on, and a task that may release their sum.

Run ``python examples/labels.py``; without a node the program gets a private one. See docs/labels.md.
"""

from __future__ import annotations

import dios

CURIOUS = b"""
import dios
with dios.connect() as node:
    salaries = node.input("salaries").read_bytes()
    node.input("own").write_bytes(salaries)
    try:
        node.input("public").write_bytes(salaries)
    except dios.NotPermittedError as error:
        node.input("own").write_bytes(str(error).encode())
"""

TOTAL = b"""
import dios
with dios.connect() as node:
    total = sum(map(int, node.input("salaries").read_bytes().split()))
    node.input("public").write_bytes(str(total).encode())
"""


def main() -> None:
    """Run both programs, and print what is in the objects afterwards."""
    with dios.connect(start=True) as node:

        def tagged(data: bytes, *tags: str) -> dios.Reference:
            """Create an anonymous object with a label."""
            return node.create(dios.SHMEM_BLOB, data=data, naming=dios.ANONYMOUS, secrecy=tags)

        salaries, own, public = tagged(b"4100 5200", "payroll"), tagged(b"", "payroll"), tagged(b"nothing")
        inputs: dict[str, dios.Handed | dios.Reference] = {
            "salaries": salaries.restrict("read"),
            "own": own,
            "public": public,
        }
        node.run(CURIOUS, inputs=inputs).wait()
        print("public:", public.read_bytes().decode())
        print("refused:", own.read_bytes().decode().partition(": ")[2].partition(". ")[0])

        right = node.declassifier(["payroll"]).restrict("declassify")
        node.run(TOTAL, inputs=inputs | {"right": right}).wait()
        print("public:", public.read_bytes().decode())


if __name__ == "__main__":
    main()

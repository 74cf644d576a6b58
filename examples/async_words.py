"""Words of many texts on asyncio: tasks count at the same time, and a stream brings their results.

Run ``python examples/async_words.py FILE…`` next to a node (``dios-node start``). Each file's bytes go to a
pure task as a reference, and each task can see that file only. With ``--trio`` before the files it is the
same program on trio. See docs/python-client.md.
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from pathlib import Path

import dios

COUNT = b"""
import dios
node = dios.connect()
words = node.input("text").read_bytes().split()
node.output("count").send(b"%d" % len(words))
"""


async def count_words(node: dios.AsyncNode, data: bytes) -> int:
    """Count the words of one text in a task."""
    text = await node.create(dios.SHMEM_BLOB, data=data)
    async with text, await node.create_stream() as results:
        task = await node.run(
            COUNT, inputs={"text": text.restrict("read")}, outputs={"count": results.restrict("write")}
        )
        async with task:
            return int(await results.receive(timeout=30))


async def on_asyncio(texts: list[bytes]) -> list[int]:
    """Count the words of all texts at once, with asyncio's own tools."""
    async with dios.aio.open_node() as node, asyncio.timeout(60):
        return await asyncio.gather(*(count_words(node, text) for text in texts))


async def on_trio(texts: list[bytes]) -> list[int]:
    """Count the words of all texts at once, with trio's."""
    import trio  # noqa: PLC0415 - a program on asyncio does not need it

    counts: dict[int, int] = {}
    async with dios.aio.open_node() as node:
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:

                async def count(number: int, text: bytes) -> None:
                    counts[number] = await count_words(node, text)

                for number, text in enumerate(texts):
                    nursery.start_soon(count, number, text)
    return [counts[number] for number in range(len(texts))]


def main(arguments: list[str]) -> None:
    """Print the number of words of each file."""
    paths = [Path(argument) for argument in arguments if argument != "--trio"]
    texts = [path.read_bytes() for path in paths]
    if "--trio" in arguments:
        import trio  # noqa: PLC0415 - see above

        counts = trio.run(partial(on_trio, texts))
    else:
        counts = asyncio.run(on_asyncio(texts))
    for path, count in zip(paths, counts, strict=True):
        print(f"{count:8} {path}")


if __name__ == "__main__":
    main(sys.argv[1:])

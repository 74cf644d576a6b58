from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import trio
import trio.testing

from dios import limits
from dios.node import seeds
from dios.node.cluster_port import keep_seeds

if TYPE_CHECKING:
    from dios.host.peers.links import PeerLinks
    from dios.node.settings import Settings


class Links:
    """The addresses of nodes that connect one after the other."""

    def __init__(self) -> None:
        self.addresses: tuple[str, ...] = ()
        self._met = trio.Event()

    async def wait_connected(self) -> None:
        """Wait for the next one."""
        await self._met.wait()
        self._met = trio.Event()

    def meet(self, address: str) -> None:
        """Let the next one connect."""
        self.addresses = (*self.addresses, address)
        self._met.set()


async def test_addresses_of_the_last_start_stay_until_the_cluster_is_met(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """A node that is stopped soon after its start finds all others again; later, those that are gone go."""
    seeds.write(tmp_path, ["n1:7400", "gone:7400"])
    links = Links()

    async def written(*addresses: str) -> None:
        while seeds.read(tmp_path) != addresses:  # noqa: ASYNC110 - a file has no event
            await trio.sleep(0.1)

    async with trio.open_nursery() as nursery:
        settings = cast("Settings", SimpleNamespace(data=tmp_path))
        nursery.start_soon(keep_seeds, settings, cast("PeerLinks", links))
        await trio.testing.wait_all_tasks_blocked()
        links.meet("n2:7400")
        await written("n2:7400", "n1:7400", "gone:7400")
        links.meet("n1:7400")
        await written("n2:7400", "n1:7400", "gone:7400")
        autojump_clock.jump(limits.SEEDS_KEPT_MS / 1000)
        links.meet("n3:7400")
        await written("n2:7400", "n1:7400", "n3:7400")
        nursery.cancel_scope.cancel()


def test_what_was_written_is_read(tmp_path: Path) -> None:
    """Addresses come back in their order, without doubles; there are none before the first."""
    assert seeds.read(tmp_path) == ()
    seeds.write(tmp_path, ["10.0.0.2:7400", "10.0.0.1:7400", "10.0.0.2:7400"])
    assert seeds.read(tmp_path) == ("10.0.0.2:7400", "10.0.0.1:7400")
    seeds.write(tmp_path, [])
    assert seeds.read(tmp_path) == ()


def test_rubbish_in_the_file_is_left_out(tmp_path: Path) -> None:
    """Lines that are no addresses cost themselves only."""
    (tmp_path / seeds.NAME).write_bytes(b"# n1\n\nn1:7400  # first\nnonsense\n0.0.0.0:1\n\xff\xfe:1\n")
    assert seeds.read(tmp_path) == ("n1:7400",)


def test_there_are_no_more_than_nodes(tmp_path: Path) -> None:
    """A longer list is cut where a cluster ends."""
    seeds.write(tmp_path, [f"n{number}:7400" for number in range(limits.NODES_MAX + 5)])
    assert len(seeds.read(tmp_path)) == limits.NODES_MAX


def test_nothing_is_written_when_nothing_changed(tmp_path: Path) -> None:
    """The file stays the same one as long as it says the same."""
    seeds.write(tmp_path, ["n1:7400"])
    before = (tmp_path / seeds.NAME).stat().st_ino
    seeds.write(tmp_path, ["n1:7400"])
    assert (tmp_path / seeds.NAME).stat().st_ino == before

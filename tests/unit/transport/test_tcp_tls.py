from pathlib import Path

from cluster_rig import connected, make_cluster

from dios.transport.secured import frame_of


async def test_frames_go_both_ways(tmp_path: Path) -> None:
    """Two nodes of one cluster know each other, and frames arrive whole and in order, both ways."""
    n1, n2 = make_cluster(tmp_path)
    async with connected(n2, n1) as (dialled, accepted):
        assert (dialled.peer.node, dialled.peer.name) == (n1.node, "n1")
        assert (accepted.peer.node, accepted.peer.name) == (n2.node, "n2")
        dialled.send_nowait(frame_of(b"to you"))
        assert await accepted.receive() == [b"to you"]
        accepted.send_nowait(frame_of(b"and back"))
        assert await dialled.receive() == [b"and back"]

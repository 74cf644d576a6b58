from pathlib import Path

import trio
from cluster_rig import listening, make_cluster

from dios.transport import tokens
from dios.transport.identity import load
from dios.transport.joining import admit, join


async def test_a_token_makes_a_node(tmp_path: Path) -> None:
    """Who shows a token becomes a node with the name it asked for, and can be dialled by others."""
    (n1,) = make_cluster(tmp_path, "n1")
    text = tokens.issue(n1)
    async with listening(n1) as (listener, nursery):

        async def serve() -> None:
            known = await admit(n1, await listener.accept())
            assert known.name == "n2"

        nursery.start_soon(serve)
        n2 = await join(listener.address, text, name="n2", directory=tmp_path / "n2")
    assert (n2.name, n2.cluster, n2.secret) == ("n2", n1.cluster, n1.secret)
    again = load(tmp_path / "n2")
    assert again is not None
    assert again.node == n2.node
    assert trio is not None

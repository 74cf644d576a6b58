"""Grants origins to a session: the caller starts its gateway, and connects both tasks by lanes.

A gateway has a NETWORK object that is limited to the origins. Only who has the right to the network can make
one: the node's own user, root, and tasks that were given the right.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from dios.client.ops.attributes import Handed
from dios.client.sync.node import Node, Reference, Task
from dios.errors import InvalidError
from dios.lib.sandbox.network import gateway, records
from dios.lib.sandbox.network.authorities import authorities
from dios.lib.sandbox.steps import Steps, call
from dios.limits import MIB
from dios.wire.messages import Limits
from dios.wire.origins import parse_origins
from dios.wire.types import NameKind, ObjectType

LABEL: Final = "sandbox network"
"""The label of the task of a gateway."""

_MEMORY_BYTES: Final = 128 * MIB


class NetworkGrant:
    """The origins that the sessions of a sandbox may reach, and the authorities that prove them."""

    def __init__(self, origins: Iterable[str], network_ca: str | Path | bytes | None) -> None:
        if isinstance(origins, str):
            raise InvalidError(f'network= is a list of origins, such as ["{origins}"]')
        self.origins: Final = parse_origins(origins)
        if network_ca is not None and not self.origins:
            raise InvalidError("network_ca= needs origins: name them with network=")
        needed = network_ca is not None or any(each.scheme == "https" for each in self.origins)
        self._authorities: Final = authorities(network_ca) if needed else b""

    def start(self, node: Node, opened: list[Reference]) -> Steps[tuple[Task, dict[str, Handed]]]:
        """Start a gateway; return its task, and the inputs of the session.

        Everything that is created is added to ``opened``. Raises NotPermittedError without the right to the
        network.
        """
        given = [each.given for each in self.origins]
        network = yield from call(node.network_op(given))
        opened.append(network)
        certificates = yield from call(
            node.create_op(ObjectType.SHMEM_BLOB, data=self._authorities, naming=NameKind.ANONYMOUS)
        )
        opened.append(certificates)
        theirs = {
            gateway.NETWORK: network.restrict("write"),
            gateway.AUTHORITIES: certificates.restrict("read"),
        }
        ours: dict[str, Handed] = {}
        for lane in range(records.LANES):
            requests = yield from call(node.create_stream_op(ring_bytes=records.LANE_BYTES))
            responses = yield from call(node.create_stream_op(ring_bytes=records.LANE_BYTES))
            opened += (requests, responses)
            theirs[records.request_label(lane)] = requests.restrict("read")
            theirs[records.response_label(lane)] = responses.restrict("write")
            ours[records.request_label(lane)] = requests.restrict("write")
            ours[records.response_label(lane)] = responses.restrict("read")
        task = yield from call(
            node.run_op(
                gateway.PROGRAM.encode(),
                inputs=theirs,
                args=given,
                label=LABEL,
                limits=Limits(memory_bytes=_MEMORY_BYTES),
                local=True,
            )
        )
        opened.append(task)
        return task, ours

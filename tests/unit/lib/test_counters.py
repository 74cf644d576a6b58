"""Libraries know the size and the version of a labelled object before they decide by them."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from blake3 import blake3

from dios.client.ops.cluster import Gathered
from dios.errors import NotPermittedError
from dios.lib.files.disks import digest_of
from dios.lib.jobs.inputs import Inputs
from dios.lib.jobs.records import Document
from dios.lib.replicated_record.blocking import BlockingReplicas
from dios.lib.sandbox import session
from tests.support.client.labelled_reference import LabelledReference

if TYPE_CHECKING:
    from dios.client.sync.node import Node, Reference

BYTES = b"4100 5200"
REFUSAL = NotPermittedError("it is labelled payroll")


def as_reference(labelled: LabelledReference) -> Reference:
    """A labelled reference for the code under test."""
    return cast("Reference", labelled)


def test_a_job_reads_the_whole_of_a_labelled_input() -> None:
    """It is no empty document, which would be left out; another user's job is refused."""
    inputs = Inputs(cast("Node", None))
    with pytest.raises(NotPermittedError):
        inputs._add_blob(as_reference(LabelledReference(BYTES, refusal=REFUSAL)), "pay")
    inputs._add_blob(as_reference(LabelledReference(BYTES, 3)), "pay")
    assert inputs.documents == [Document(0, 0, len(BYTES), "pay")]
    assert inputs.digests() == [(b"", len(BYTES), 3)]


def test_a_labelled_replica_counts_with_its_bytes() -> None:
    """The digest is that of all bytes."""
    assert digest_of(as_reference(LabelledReference(BYTES))) == blake3(BYTES).digest()


def test_the_versions_of_labelled_replicas_are_known_when_they_are_compared() -> None:
    """One that cannot be read does not prevent the look at the others."""
    replicas = (
        LabelledReference(BYTES, 2, node="n1"),
        LabelledReference(BYTES, 5, node="n2"),
        LabelledReference(BYTES, 7, node="n3", refusal=REFUSAL),
    )

    def find() -> Gathered[LabelledReference]:
        return Gathered(list(replicas), incomplete=False)

    node = cast("Node", SimpleNamespace(nodes=list))
    look = BlockingReplicas(node, cast("Callable[[], Gathered[Reference]]", find))._look(fresh=True)
    assert look.versions == {hash("n1"): 2, hash("n2"): 5, hash("n3"): 0}


def test_a_session_places_the_labelled_inputs_that_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A larger one is left out; one that the session may not read ends its start with the refusal."""
    placed: list[str] = []

    class Files:
        def __init__(self, _: Node, inputs: list[str], __: object) -> None:
            placed.extend(inputs)

        def place(self) -> None:
            pass

    monkeypatch.setattr(session, "TaskFiles", Files)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, 0))
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=2 * len(BYTES), f_frsize=1))
    small, large = LabelledReference(BYTES, label="small"), LabelledReference(BYTES + b"!", label="large")
    node = SimpleNamespace(inputs=(large, small), link=SimpleNamespace(page=None))
    session.place_inputs(cast("Node", node))
    assert placed == ["small"]
    node.inputs = (LabelledReference(BYTES, refusal=REFUSAL, label="pay"),)
    with pytest.raises(NotPermittedError):
        session.place_inputs(cast("Node", node))

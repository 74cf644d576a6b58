"""The tables of a node as its own user reads them: whole, in bounded parts, and without names or secrets."""

from __future__ import annotations

import json

import pytest

from dios.core.calls.tables import TABLE_ROWS_MAX
from dios.errors import Code
from dios.ids import Principal
from dios.wire import messages
from dios.wire.nametext import fingerprint
from dios.wire.types import Flag, Mode, ObjectType
from tests.support.core.harness import Client, Node
from tests.support.core.local_or_remote import Site

TABLES = (
    "node",
    "objects",
    "tasks",
    "references",
    "waiting",
    "requests",
    "peers",
    "story",
    "services",
    "kept",
    "metrics",
    "log",
    "environments",
    "accounts",
)


def read(client: Client, table: str) -> list[dict[str, int | str]]:
    """All rows of a table, part by part."""
    rows: list[dict[str, int | str]] = []
    start = 0
    while True:
        part = client.ask(messages.TableRows, messages.ReadTable(table, start))
        assert len(part.rows) <= TABLE_ROWS_MAX
        rows += [dict(zip(part.columns, row, strict=True)) for row in part.rows]
        if not part.following:
            return rows
        start = part.following


def test_the_names_of_the_tables_are_listed() -> None:
    """A call without a table's name answers with the names of all, and every one of them can be read."""
    owner = Node().session()
    assert owner.ask(messages.TableRows, messages.ReadTable()).tables == TABLES
    for table in TABLES:
        read(owner, table)


def test_rows_say_what_the_tables_hold() -> None:
    """Objects, tasks and references are there with their fingerprints and counts."""
    node = Node()
    owner = node.session()
    blob = owner.create(data=b"abc").reference
    (row,) = [entry for entry in read(owner, "objects") if entry["fingerprint"] == blob.fingerprint]
    assert (row["type"], row["size"], row["references"]) == ("SHMEM_BLOB", 3, 1)
    assert len(read(owner, "references")) == sum(len(task.table) for task in node.core.state.everybody())
    assert [entry["kind"] for entry in read(owner, "tasks")] == ["session"]


def test_objects_and_references_have_the_tags_of_the_object() -> None:
    """Both tables have the label of an object with tags, and the empty text for others."""
    owner = Node().session()
    plain = owner.create(data=b"abc").reference
    call = messages.Create(ObjectType.SHMEM_BLOB, data=b"4100")
    pay = owner.ask(messages.Created, messages.labelled(call, ("payroll", "hr"))).reference
    for table, column in (("objects", "fingerprint"), ("references", "object")):
        tags = {row[column]: row["secrecy"] for row in read(owner, table)}
        assert tags[pay.fingerprint] == " ".join(pay.secrecy) != ""
        assert tags[plain.fingerprint] == ""


def test_the_giver_of_a_reference_and_the_objects_of_a_waiting_call_are_shown() -> None:
    """A delegated reference has the fingerprint of its giver, and a waiting call those of its objects."""
    node = Node()
    owner = node.session()
    blob = owner.create(data=b"abc").reference
    task = owner.run()
    owner.delegate(blob.ref, task.reference.ref)
    owner.ask(messages.Buffer, messages.AcquireWrite(blob.ref, 3))
    owner.send(messages.Select((task.reference.ref,), Mode.READ))
    rows = {(row["task"], row["object"]): row for row in read(owner, "references")}
    holders = (owner.welcome.self_ref.fingerprint, task.reference.fingerprint)
    mine, given = (rows[holder, blob.fingerprint] for holder in holders)
    assert (mine["origin"], mine["buffers"]) == ("", 1)
    assert given["origin"] == mine["task"]
    (waiting,) = read(owner, "waiting")
    assert (waiting["task"], waiting["objects"]) == (mine["task"], given["task"])


def test_a_long_table_is_read_in_parts() -> None:
    """Every row of a table with more rows than fit one answer comes once."""
    node = Node()
    owner = node.session()
    for _ in range(TABLE_ROWS_MAX):
        owner.create(data=b"x")
    for table in ("objects", "references"):
        rows = read(owner, table)
        assert len(rows) > TABLE_ROWS_MAX
        assert len({tuple(row.values()) for row in rows}) == len(rows)
    assert len(read(owner, "objects")) == len(node.core.state.objects)


def test_others_are_refused() -> None:
    """Another principal's session, and a table that does not exist, are refused."""
    node = Node()
    for table in ("", *TABLES):
        assert node.session(Principal("uid:77")).refused(messages.ReadTable(table)) == Code.EPERM
    assert node.session().refused(messages.ReadTable("secrets")) == Code.EINVAL


@pytest.mark.parametrize("site", ["away"], indirect=True)
def test_no_name_and_no_secret_occurs(site: Site) -> None:
    """Names of objects, groups and tasks, labels, ids of references and the cluster's secret stay out."""
    me = site.me
    me.create(ObjectType.GROUP)
    for node in site.cluster.nodes:
        reader = node.session()
        program = reader.create(data=b"program").reference
        label = "a label that tells something"
        run = messages.Run(program.ref, arguments=("an argument",), label=label, flags=int(Flag.NON_BLOCKING))
        reader.ask(messages.Created, run)
        text = json.dumps({table: read(reader, table) for table in TABLES})
        state = node.core.state
        names = {target.name for target in state.objects.values() if target.name}
        assert len(names) > 3
        assert state.secret
        for secret in (*names, state.secret):
            assert secret.hex() not in text
            assert str(int.from_bytes(secret, "big")) not in text
        for name in names:
            assert name.hex()[:24] not in text
            assert fingerprint(name) in text
        assert label not in text
        assert "an argument" not in text
        for task in state.everybody():
            for reference in task.table:
                assert str(reference.id) not in text

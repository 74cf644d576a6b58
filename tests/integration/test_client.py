"""The Python client against a real node, with real tasks: what the README promises."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import dios
from dios import limits, syscalls
from dios.client.sync.node import Console, Node, Reference, Stream, Task
from dios.ids import Name
from dios.wire import messages
from tests.support.node.running_node import RunningNode, running_node

BIG = 4 * limits.MIB


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """One node for all tests here."""
    with running_node(tmp_path_factory.mktemp("node") / "data") as started:
        yield started


@pytest.fixture
def place(running: RunningNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where it is, for somebody whose home directory is empty."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("DIOS_NODE", running.place)
    return running.place


@pytest.fixture
def node(place: str) -> Iterator[Node]:
    """A connection to it."""
    with dios.connect() as connected:
        yield connected


def output_of(task: Task) -> str:
    """Everything that a task prints, until its end."""
    with task.console() as console:
        return b"".join(console).decode()


def ended(node: Node, program: bytes, **more: object) -> str:
    """What a program printed, which must end well."""
    task = node.run(program, **more)  # type: ignore[arg-type]
    printed = output_of(task)
    status = task.wait(30)
    assert status.ok, f"{status}\n{printed}"
    task.close()
    return printed


# -- the example of the README ----------------------------------------------------------------------
def test_the_example_works_as_written(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines that the documentation shows do what it says."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "worker.py").write_text("import dios\nprint(dios.connect().inputs[0].read_bytes(5))\n")
    with dios.connect() as node:
        stream = node.create_stream()
        group = node.create_group()
        blob = node.create(dios.DURABLE_BLOB, groups=[group], data=b"...")
        assert blob.name is not None
        for ref in node.lookup(blob.name, group=group):
            attributes = (ref.proximity, ref.persistence, ref.size)
            assert attributes == (dios.Proximity.NODE, dios.Persistence.DURABLE, 3)
        with blob.read(dios.MRSW) as request:
            total = sum(request.view)
        assert total == sum(b"...")
        with blob.write(4096, dios.EXCL) as request:
            request.view[:5] = b"hello"
        task = node.run("worker.py", groups=[group], inputs=[blob.restrict("read")])
        ready = node.select([task, stream], mode="read", timeout=30.0)
        assert ready is task
        assert output_of(task) == "b'hello'\n"


def test_no_node_is_told_with_what_to_do(place: str, tmp_path: Path) -> None:
    """Connecting where no node listens says which command starts one."""
    with pytest.raises(dios.UnreachableError, match="dios-node start"):
        dios.connect(tmp_path / "nowhere.sock")


PAGE = Path(__file__).parents[2] / "docs" / "python-client.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_every_block_of_the_page_runs(place: str, block: str) -> None:
    """Each Python block of the client's page does what it claims."""
    exec(compile(block, PAGE.name, "exec"), {"dios": dios})  # noqa: S102 - our own page


# -- objects ----------------------------------------------------------------------------------------
def test_group_comes_back_through_the_keyring(place: str) -> None:
    """A group kept in the keyring is presented at the next connect, and its objects are found again."""
    with dios.connect() as node:
        group = node.create_group()
        assert group.name is not None
        assert group.read_name() == group.name
        dios.Keyring.load().add("mine", dios.parse_name(dios.format_name(group.name)))
        blob = node.create(dios.DURABLE_BLOB, groups=[group], data=b"kept")
        name = blob.name
    assert name is not None
    with dios.connect() as again:
        reference = again.find(name)
        assert reference is not None
        assert reference.read_bytes() == b"kept"
    with dios.connect(groups=["mine"]) as chosen:
        assert chosen.find(dios.format_name(name)) is not None
    with dios.connect(groups=[]) as stranger:
        assert stranger.lookup(name) == []


@pytest.mark.parametrize("kind", [dios.DURABLE_BLOB, dios.SHMEM_BLOB, dios.PRIVMEM_BLOB])
@pytest.mark.parametrize("size", [0, 1, 100, limits.INLINE_BYTES_MAX, limits.INLINE_BYTES_MAX + 1, BIG + 17])
def test_bytes_come_back(node: Node, kind: dios.ObjectType, size: int) -> None:
    """What was created, written and patched is what is read, for every kind and size of blob."""
    data = os.urandom(size)
    with node.create(kind, groups=node.groups[:1], data=data) as blob:
        assert blob.size == size
        assert blob.read_bytes() == data
        with blob.read() as request:
            assert request.view.tobytes() == data
        middle = size // 2
        assert blob.read_bytes(10, middle) == data[middle : middle + 10]
        other = os.urandom(size // 2 + 1)
        blob.write_bytes(other)
        assert (blob.read_bytes(), blob.size) == (other, len(other))
        blob.write_bytes(b"patch", offset=len(other))
        assert blob.read_bytes() == other + b"patch"
        blob.delete()


@pytest.mark.parametrize("size", [1000, BIG])
def test_write_request_goes_through_all_its_stages(node: Node, size: int) -> None:
    """A buffer is committed, committed again, re-acquired and committed last, and holds what it should."""
    data = os.urandom(size)
    with node.create(dios.SHMEM_BLOB, data=data) as blob:
        with blob.write(size, dios.EXCL) as request:
            assert request.view.tobytes() == data
            request.view[:1] = b"1"
            request.commit()
            assert blob.v_w == request.v_w
            request.view[:1] = b"2"
            request.commit()
            request.reacquire()
            assert request.view[:1].tobytes() == b"2"
            request.view[:1] = b"3"
            request.reacquire()
            request.view[-1:] = b"4"
        assert blob.read_bytes() == b"3" + data[1:-1] + b"4"
        assert (blob.a_r, blob.a_w) == (0, 0)


@pytest.mark.parametrize("size", [100, BIG])
def test_conflicts_are_seen_and_can_be_retried(node: Node, size: int) -> None:
    """A write that another one came between raises Conflict, changes nothing, and succeeds when retried."""
    with node.create(dios.SHMEM_BLOB, data=bytes(size)) as blob:
        with blob.write(size, dios.MRSW) as request:
            blob.write_bytes(b"between", offset=1)
            request.view[:1] = b"x"
            with pytest.raises(dios.Conflict):
                request.commit()
            assert blob.read_bytes(8) == b"\0between"
            request.reacquire()
            assert request.view[:8].tobytes() == b"\0between"
            request.view[:1] = b"x"
        assert blob.read_bytes(8) == b"xbetween"
        with pytest.raises(dios.Conflict), blob.read(dios.MRSW):
            blob.write_bytes(b"again")
        with blob.read(), pytest.raises(dios.Busy):
            blob.write(size, dios.EXCL)


def test_views_stay_what_they_were(node: Node) -> None:
    """A read's view shows the version it was acquired on, whatever is written meanwhile."""
    with node.create(dios.SHMEM_BLOB, data=b"a" * BIG) as blob, blob.read() as request:
        blob.write_bytes(b"b" * BIG)
        assert request.view[:1].tobytes() == b"a"
        assert request.view[-1:].tobytes() == b"a"
        request.reacquire()
        assert request.view[:1].tobytes() == b"b"


def test_raw_memory_is_shared_at_once(node: Node) -> None:
    """A raw blob's large view is the object's own memory: a reader sees a write before its commit."""
    with node.create(dios.SHMEM_BLOB, buffering=dios.RAW, data=bytes(BIG)) as blob:
        with blob.write(BIG, dios.ANY) as writing, blob.read() as reading:
            writing.view[:3] = b"now"
            assert reading.view[:3].tobytes() == b"now"
        assert blob.read_bytes(3) == b"now"


@pytest.mark.parametrize("size", [100, BIG])
def test_a_repeated_read_takes_no_call(node: Node, size: int) -> None:
    """Bytes that are here serve reads until the object is written; all reads are counted in the end."""
    data = os.urandom(size)
    group = node.create_group()
    blob = node.create(dios.SHMEM_BLOB, groups=[group], data=data)
    assert blob.name is not None
    view = blob.view_bytes()
    before = blob.v_r
    for _ in range(10):
        assert blob.view_bytes() == view == blob.read_bytes() == data
        with blob.read(dios.MRSW, size=5, offset=3) as request:
            assert bytes(request.view) == data[3:8]
        assert blob.read_bytes(5, 3) == blob.view_bytes(5, 3) == data[3:8]
    assert blob.v_r == before, "no call was made"
    other = node.find(blob.name)
    assert other is not None
    other.write_bytes(b"new")
    assert blob.read_bytes() == b"new"
    assert bytes(view) == data
    assert blob.v_r == before + 51


def test_a_request_keeps_the_mapping_of_a_large_object(node: Node) -> None:
    """The bytes that one request has mapped serve the next ones without a call, until they are replaced."""
    blob = node.create(dios.SHMEM_BLOB, groups=[node.create_group()], data=b"a" * BIG)
    with blob.read(dios.MRSW) as request:
        assert bytes(request.view[-1:]) == b"a"
        first = request.view
    with pytest.raises(ValueError, match="released"):
        len(first)
    before = blob.v_r
    for _ in range(10):
        with blob.read(dios.MRSW) as request:
            assert request.size == BIG
            assert bytes(request.view[BIG - 3 :]) == b"aaa"
        with blob.read(dios.ANY, size=4, offset=BIG - 4) as request:
            assert bytes(request.view) == b"aaaa"
    assert blob.v_r == before, "no call was made"
    blob.write_bytes(b"b" * BIG)
    with blob.read(dios.MRSW) as request:
        assert bytes(request.view[:1]) == b"b"


def test_reads_without_a_call_respect_other_requests(node: Node) -> None:
    """A request without a call conflicts with a write, and is none while a writer is active."""
    blob = node.create(dios.SHMEM_BLOB, groups=[node.create_group()], data=b"one")
    assert blob.read_bytes() == b"one"
    request = blob.read(dios.MRSW)
    blob.write_bytes(b"two")
    with pytest.raises(dios.Conflict):
        request.commit()
    request.reacquire()
    assert bytes(request.view) == b"two"
    request.commit()
    request.release()
    with blob.write(3, dios.EXCL) as writer:
        assert blob.read_bytes() == b"two", "a call, after which the other request does not hold"
        with pytest.raises(dios.Busy):
            blob.read(dios.MRSW)
        with pytest.raises(dios.Conflict):
            writer.commit()
        writer.release()
    with blob.read(dios.ANY) as request:
        blob.write_bytes(b"six")
        assert bytes(request.view) == b"two"


def test_no_read_without_a_call_through_a_lost_reference(node: Node) -> None:
    """What was taken back, closed or deleted is not read from the bytes that are here."""
    blob = node.create(dios.SHMEM_BLOB, groups=[node.create_group()], data=b"one")
    assert blob.name is not None
    parent = blob.copy()
    own = messages.Copy(parent.ref, node.self_info.ref)
    answer = node.vector([own])[0]
    assert not isinstance(answer, dios.DiosError)
    child = node.handle(answer[0].references[0])  # type: ignore[union-attr]
    other = node.find(blob.name)
    assert other is not None
    for reference in (child, other, blob):
        assert reference.read_bytes() == reference.read_bytes() == b"one"
    parent.retire()
    with pytest.raises(dios.BadReferenceError):
        child.read_bytes()
    other.close()
    with pytest.raises(dios.BadReferenceError):
        other.read_bytes()
    parent.destroy()
    with pytest.raises(dios.StaleError):
        blob.read_bytes()


def test_read_only_reference_cannot_write(node: Node) -> None:
    """A reference without the right to write is refused, naming the right."""
    with node.create(dios.SHMEM_BLOB, data=b"x") as blob:
        blob.delegate(node.self, "read")
        event = node.next_event(30)
        assert isinstance(event, dios.Delegated)
        narrowed = event.reference
        assert narrowed.permissions == dios.Permission.READ
        assert narrowed.object_id == blob.object_id
        with pytest.raises(dios.NotPermittedError, match="right to write"):
            narrowed.write_bytes(b"y")


def test_deleted_object_is_a_zombie(node: Node) -> None:
    """Deleting an object through one reference makes the others zombies, as their page shows."""
    blob = node.create(dios.DURABLE_BLOB, groups=node.groups[:1], data=b"x")
    other = blob.copy()
    before = other.zombie
    blob.delete()
    assert (before, other.zombie) == (False, True)
    with pytest.raises(dios.StaleError):
        other.read_bytes()


def test_copy_with_another_persistence(node: Node) -> None:
    """A copy in memory of a durable object has its name and bytes and a life of its own."""
    blob = node.create(dios.DURABLE_BLOB, groups=node.groups[:1], data=b"both")
    near = blob.copy(persistence=dios.Persistence.VOLATILE)
    assert (near.type, near.persistence, near.name) == (dios.SHMEM_BLOB, dios.Persistence.VOLATILE, blob.name)
    assert near.read_bytes() == b"both"
    assert len(node.lookup(blob.name or b"")) == 2
    near.write_bytes(b"near")
    assert blob.read_bytes() == b"both"
    blob.delete()


def test_timer_is_selected(node: Node) -> None:
    """A timer becomes ready by itself."""
    with node.create_timer(0.02) as timer:
        assert node.select([timer], timeout=0) is None
        assert node.select([timer], timeout=30) is timer


def test_nothing_of_a_client_stays_open(node: Node) -> None:
    """Hundreds of requests, large and small, leave no descriptor or mapping in the client."""

    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    with node.create(dios.SHMEM_BLOB, data=bytes(BIG)) as blob:
        gc.collect()
        before = descriptors()
        mappings = len(Path("/proc/self/maps").read_text().splitlines())
        for _ in range(100):
            with blob.read() as reading:
                assert reading.view[0] == 0
            with blob.write(BIG, blank=True) as writing:
                writing.view[:1] = b"\0"
        gc.collect()
        assert descriptors() <= before + 1  # the mapping of the newest read is kept for the next one
        assert len(Path("/proc/self/maps").read_text().splitlines()) <= mappings + 10


# -- the calls in the raw ---------------------------------------------------------------------------
def test_raw_calls_stand_below(node: Node) -> None:
    """The thirteen calls work on plain ids, and vectors answer each of theirs."""
    created = syscalls.create(node, dios.SHMEM_BLOB, data=b"abc")
    ref = created.reference.ref
    buffer, fd = syscalls.acquire_write(node, ref, 3, semantics=dios.EXCL)
    assert (buffer.size, buffer.data, fd) == (3, b"abc", None)
    assert syscalls.commit_write(node, ref, buffer.buffer, data=b"xyz").v_w == 1
    assert syscalls.release_write(node, ref, buffer.buffer).value == 1
    assert syscalls.read_once(node, ref)[0].data == b"xyz"
    assert syscalls.stat(node, ref).v_w == 1
    assert syscalls.select(node, (ref,)) == 0
    outcomes = syscalls.vector(node, (messages.Stat(ref), messages.Stat(ref + 1), messages.ReadOnce(ref)))
    assert isinstance(outcomes[1], dios.BadReferenceError)
    last = outcomes[2]
    assert not isinstance(last, dios.DiosError)
    assert isinstance(last[0], messages.Buffer)
    assert last[0].data == b"xyz"
    own = node.self.ref
    lent = syscalls.copy(node, ref, own, lifetime_ns=10**12)
    assert isinstance(lent, messages.References)
    assert lent.references[0].expires_ns
    assert syscalls.retire(node, ref).value == 1
    assert syscalls.delete(node, ref).value == 1


# -- tasks ------------------------------------------------------------------------------------------
def test_task_gets_what_it_is_handed(node: Node) -> None:
    """Arguments, labels, inputs and outputs arrive; a result goes back through an output."""
    program = b"""
import sys, dios
node = dios.connect()
text = node.input("text").read_bytes()
node.output("result").write_bytes(text.upper() + " ".join(sys.argv[1:]).encode())
print(node.input("text").permissions, len(node.groups))
"""
    with node.create(dios.SHMEM_BLOB, data=b"abc ") as text, node.create(dios.SHMEM_BLOB) as result:
        printed = ended(
            node, program, inputs={"text": text.restrict("read")}, outputs={"result": result}, args=["x", "y"]
        )
        assert result.read_bytes() == b"ABC x y"
        assert printed.split() == ["1", "1"]


def test_failing_task_tells_why(node: Node) -> None:
    """An exception is the cause of the task's end, with its last line in the detail and on its console."""
    task = node.run(b"def f():\n    raise KeyError('missing')\nf()\n", label="broken.py")
    status = task.wait(30)
    assert (status.cause, status.exit_code, status.exit_status) == (dios.Cause.EXCEPTION, 1, 1)
    assert "KeyError: 'missing'" in status.detail
    assert 'File "broken.py", line 2, in f' in output_of(task)
    exiting = node.run(b"import sys\nsys.exit(3)\n")
    assert exiting.wait(30).exit_status == 3


def test_running_task_is_paused_resumed_and_killed(node: Node) -> None:
    """A task that waits can be paused, resumed and killed, and waited for with a limit."""
    task = node.run(b"import dios\nprint('ready', flush=True)\nnode = dios.connect()\nnode.next_event()\n")
    console = task.console()
    assert console.receive(30) == b"ready\n"
    assert task.status().state is dios.TaskState.RUNNING
    with pytest.raises(dios.TimeLimitError):
        task.wait(0.01)
    assert task.pause()
    assert task.resume()
    task.kill()
    status = task.wait(30)
    assert status.cause is dios.Cause.KILLED
    assert task.status() == status
    task.kill()
    assert list(console) == []


def test_killing_costs_no_reference(node: Node) -> None:
    """A task that is killed is held by the one reference that it was held by before, until that is closed."""
    task = node.run(b"import dios\ndios.connect().next_event()\n")
    before = node.info().counts["references"]
    task.kill()
    assert task.wait(30).cause is dios.Cause.KILLED
    ended = node.info().counts["references"]
    assert ended < before
    task.kill()
    assert node.info().counts["references"] == ended


def test_child_that_ends_is_an_event(node: Node) -> None:
    """The end of a child is told on the parent's self-reference."""
    task = node.run(b"raise SystemExit(5)")
    while not isinstance(event := node.next_event(30), dios.ChildEnded):
        pass
    assert event.object_id == task.object_id
    assert event.status.exit_code == 5


def test_delegation_to_a_running_task(node: Node) -> None:
    """A reference delegated to a running task arrives as an event there, with no more rights than given."""
    program = b"""
import dios
node = dios.connect()
event = node.next_event(30)
print(event.reference.read_bytes(), int(event.reference.permissions), node.groups[0].name)
"""
    with node.create(dios.SHMEM_BLOB, data=b"late") as blob:
        task = node.run(program)
        blob.delegate(task, "read")
        assert output_of(task) == "b'late' 1 None\n"


def test_stream_between_two_tasks(node: Node) -> None:
    """Two tasks talk through a stream that was made for them; the reader sees the end."""
    source = b"""
import dios
out = dios.connect().outputs[0]
for number in range(1000):
    out.send(b"%d" % number)
out.send(bytes(5_000_000))
"""
    sink = b"""
import dios
inlet = dios.connect().inputs[0]
got = [message for message in inlet]
print(len(got), sum(int(message) for message in got[:1000]), len(got[1000]))
"""
    with node.create_stream() as stream:
        writing = node.run(source, outputs=[stream.restrict("write")])
        reading = node.run(sink, inputs=[stream.restrict("read")])
        printed = output_of(reading)
        assert reading.wait(30).ok, printed
        assert writing.wait(30).ok
        assert printed == "1001 499500 5000000\n"


def test_select_mixes_streams_and_tasks(node: Node) -> None:
    """Select over a stream and a task names the stream while there is something in it, then the task."""
    program = b"import dios\ndios.connect().outputs[0].send(b'one')\n"
    with node.create_stream() as stream:
        task = node.run(program, outputs=[stream.restrict("write")])
        assert isinstance(stream, Stream)
        assert node.select([task, stream], timeout=30) is stream
        assert stream.receive() == b"one"
        assert node.select([stream], timeout=30) is stream
        with pytest.raises(dios.EndOfStreamError):
            stream.receive()
        assert node.select([task], timeout=30) is task


def test_task_starts_tasks(node: Node) -> None:
    """fib(10) as tasks that start tasks and answer through blobs, in a few lines."""
    program = b"""
import sys, dios
node, n = dios.connect(), int(sys.argv[1])

def start(n):
    result = node.create(dios.SHMEM_BLOB, naming=dios.ANONYMOUS)
    return node.run(node.executable, args=[str(n)], outputs=[result]), result

if n < 2:
    value = n
else:
    children = [start(n - 1), start(n - 2)]
    assert all(task.wait().ok for task, _ in children)
    value = sum(int(result.read_bytes()) for _, result in children)
node.outputs[0].write_bytes(str(value).encode())
"""
    with node.create(dios.SHMEM_BLOB) as result:
        ended(node, program, args=["4"], outputs=[result])
        assert result.read_bytes() == b"3"


def test_program_with_own_modules(node: Node) -> None:
    """A program brings modules of its own, and an executable object can be run many times."""
    program = node.create_program(
        b"import helper\nprint(helper.WORD)\n", modules={"helper": "WORD = 'own'\n"}
    )
    tasks = [node.run(program) for _ in range(3)]
    assert [output_of(task) for task in tasks] == ["own\n"] * 3
    assert all(task.wait(30).ok for task in tasks)


def test_pure_task_sees_nothing_else(node: Node) -> None:
    """A pure task cannot list tasks or look at the node, and a name without its group is empty."""
    program = b"""
import dios
node = dios.connect()
for call in (node.tasks, node.info, node.shutdown):
    try:
        call()
    except dios.NotPermittedError:
        print("refused")
print(node.lookup(bytes.fromhex(node.arguments[0])))
"""
    blob = node.create(dios.SHMEM_BLOB, groups=node.groups[:1], data=b"secret")
    assert blob.name is not None
    printed = ended(node, program, groups=[node.create_group()], args=[blob.name.hex()])
    assert printed == "refused\n" * 3 + "[]\n"


def test_console_of_a_session_can_be_written(node: Node) -> None:
    """A person's process has a console too, which takes bytes of any length."""
    assert isinstance(node.console, Console)
    node.console.send(bytes(100_000))


def test_references_are_shown_without_secrets(node: Node) -> None:
    """Nothing that a program may log shows a name."""
    blob = node.create(dios.SHMEM_BLOB, groups=node.groups[:1])
    assert isinstance(blob, Reference)
    assert blob.name is not None
    shown = repr(blob) + repr(node) + repr(node.groups) + repr(node.tasks())
    for secret in (blob.name, node.name):
        assert secret.hex() not in shown
        assert repr(secret)[2:-1] not in shown
        assert dios.format_name(secret) not in shown


def test_groups_of_a_long_keyring_are_presented_when_they_are_needed(place: str) -> None:
    """A session begins with the newest groups; a lookup, or the name of an older one, brings the others."""
    keyring = dios.Keyring.load()
    with dios.connect() as maker:
        first = maker.create_group()
        blob = maker.create(dios.DURABLE_BLOB, groups=[first], data=b"deep")
        keyring.add("first", Name(first.name or b""))
        for number in range(limits.GROUPS_PER_CALL_MAX):
            keyring.add(f"later{number}", Name(maker.create_group().name or b""))
        name = blob.name or b""
    with dios.connect() as node:
        assert first.fingerprint not in {group.fingerprint for group in node.groups}
        reference = node.find(name)
        assert reference is not None
        assert reference.read_bytes() == b"deep"
        assert first.fingerprint in {group.fingerprint for group in node.groups}
    with dios.connect(groups=[]) as node:
        assert node.find(name) is None
        group = node.group("first")
        assert group is not None
        assert node.find(name, group=group) is not None
        assert node.group(bytes(range(32))) is None
    assert place


def test_a_moved_reference_is_the_receivers_alone(node: Node) -> None:
    """The receiver reads the object, the mover's handle is closed, and a refused move leaves it open."""
    program = b"import dios\nprint(dios.connect().next_event(20).reference.read_bytes())\n"
    receiver, gone = node.run(program), node.run(b"")
    assert gone.wait(30).ok
    blob = node.create(dios.SHMEM_BLOB, data=b"abc", naming=dios.ANONYMOUS)
    with pytest.raises(dios.DiosError):
        blob.move(gone)
    assert blob.read_bytes() == b"abc"
    blob.move(receiver, "read")
    with pytest.raises(dios.DiosError):
        blob.stat()
    assert output_of(receiver).strip() == "b'abc'"

"""The ends of sandboxes and of their contexts: no session is left that no bound counts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self, cast

import msgspec
import pytest
import trio
from msgspec.structs import replace

from dios.lib.sandbox_server import e2b_agent, e2b_api
from dios.lib.sandbox_server.failures import Kind, RequestError
from dios.lib.sandbox_server.held import HeldSandbox
from dios.lib.sandbox_server.holder import SNAPSHOTS_MAX, SandboxHolder
from dios.lib.sandbox_server.http import AnswerWriter, Head
from dios.lib.sandbox_server.keys import KeyBounds, KeyFile, KeyRecord
from dios.lib.sandbox_server.operations import Call, NoRequest
from dios.lib.sandbox_server.templates import SandboxTemplate, ServerSettings


class Session:
    """A session that answers at once; its opening, its questions and its end wait for events."""

    paused = False

    def __init__(self) -> None:
        self.ended = ""
        self.opens, self.answers, self.closes = trio.Event(), trio.Event(), trio.Event()
        for event in (self.opens, self.answers, self.closes):
            event.set()
        self.is_closing = False
        self.failure: Exception | None = None
        self.stored: list[str] = []

    async def __aenter__(self) -> Self:
        await self.opens.wait()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End it."""
        self.is_closing = True
        with trio.CancelScope(shield=True):
            await self.closes.wait()
        self.ended = "it was closed"
        if self.failure is not None:
            raise self.failure

    async def put(self, _name: str, _value: object) -> None:
        """Take a variable."""

    async def snapshot(self, place: str) -> None:
        """Store a snapshot."""
        await self.answers.wait()
        self.stored.append(place)

    async def call(self, _function: str, operation: str, *_arguments: object) -> bytes:
        """Answer a question."""
        await self.answers.wait()
        return {"enter_folder": b'"/tmp"'}.get(operation, b"false")


class SessionTemplate:
    """A template of the next of these sessions."""

    has_programs = False
    memory_bytes = 1

    def __init__(self, *sessions: Session) -> None:
        self.sessions = iter(sessions)

    def sandbox(self, _node: object) -> Session:
        """Return the next session."""
        return next(self.sessions)


@asynccontextmanager
async def holding(
    folder: Path, *sessions: Session, sandboxes: int = 3
) -> AsyncIterator[tuple[SandboxHolder, KeyRecord]]:
    """A holder of these sessions, and a key of it."""
    keys = KeyFile(folder / "keys.json")
    bounds = KeyBounds(sandboxes=sandboxes, memory_bytes=100, seconds=60)
    key = keys.owner(keys.add("one", "", bounds))
    assert key is not None
    template = cast("SandboxTemplate", SessionTemplate(*sessions))
    holder = SandboxHolder(ServerSettings(templates={"base": template}, snapshots="dios://tries"), keys, None)
    async with trio.open_nursery() as nursery:
        await nursery.start(holder.run)
        yield holder, key
        nursery.cancel_scope.cancel()


async def opened(holder: SandboxHolder, key: KeyRecord, request_key: str = "", name: str = "") -> HeldSandbox:
    """Start a sandbox."""
    metadata = {"name": name} if name else {}
    return await holder.create(key, "base", metadata=metadata, variables={}, request_key=request_key)


async def test_no_context_opens_in_a_sandbox_that_ends(tmp_path: Path) -> None:
    """One that is about to be open then is closed, and so are all others, whatever one of them raises."""
    own, broken, slow, late = (Session() for _ in range(4))
    async with holding(tmp_path, own, broken, slow, late, sandboxes=4) as (holder, key):
        held = await opened(holder, key)
        await holder.open_context(held, "")
        await holder.open_context(held, "")
        broken.failure = ValueError("a defect")
        slow.closes = trio.Event()
        late.answers = trio.Event()
        failures: list[RequestError] = []

        async def open_late() -> None:
            try:
                await holder.open_context(held, "")
            except RequestError as error:
                failures.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(open_late)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(holder.end, held)
            await trio.testing.wait_all_tasks_blocked()
            assert slow.is_closing
            assert not held.is_open
            late.answers.set()
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(RequestError):
                await holder.close_context(held, next(name for name in held.contexts if name != held.name))
            slow.closes.set()
        assert [failure.kind for failure in failures] == [Kind.GONE]
        assert all(session.ended for session in (own, broken, slow, late))


async def test_a_context_counts_until_its_session_has_ended(tmp_path: Path) -> None:
    """Its place is free after that, and not before."""
    own, slow, other = (Session() for _ in range(3))
    async with holding(tmp_path, own, slow, other, sandboxes=2) as (holder, key):
        held = await opened(holder, key)
        context = await holder.open_context(held, "")
        slow.closes = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(holder.close_context, held, context.name)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(RequestError) as refused:
                await holder.open_context(held, "")
            assert refused.value.kind is Kind.LIMIT
            slow.closes.set()
        await holder.open_context(held, "")


async def test_a_key_that_is_revoked_while_its_sandbox_starts_is_told_so(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """The sandbox does not start, and that is no defect of the server."""
    slow = Session()
    slow.opens = trio.Event()
    async with holding(tmp_path, slow) as (holder, key):
        holder.keys.remove(key.name)
        with pytest.raises(RequestError) as refused:
            await opened(holder, key)
        assert refused.value.kind is Kind.UNAUTHENTICATED
        assert not holder._held


async def test_a_request_key_belongs_to_one_request(tmp_path: Path) -> None:
    """The same request gets the sandbox of the first one, and another one is refused."""
    async with holding(tmp_path, Session()) as (holder, key):
        first = await opened(holder, key, "same")
        assert await opened(holder, key, "same") is first
        with pytest.raises(RequestError) as refused:
            await opened(holder, key, "same", name="other")
        assert refused.value.kind is Kind.CONFLICT


async def test_sandboxes_end_if_the_keys_stay_unreadable(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """A key that may have been revoked is not trusted for ever; a moment of damage ends nothing."""
    async with holding(tmp_path, Session()) as (holder, key):
        held = await opened(holder, key)
        whole = holder.keys.path.read_bytes()
        holder.keys.path.write_bytes(b"damaged")
        while holder._unread < 3:  # noqa: ASYNC110 - it has no event
            await trio.sleep(1)
        holder.keys.path.write_bytes(whole)
        while holder._unread:  # noqa: ASYNC110 - the same
            await trio.sleep(1)
        assert held.is_open
        holder.keys.path.write_bytes(b"damaged")
        # Its own time is not over yet.
        with trio.fail_after(20):
            await held.over.wait()


def test_a_snapshot_has_the_bounds_of_its_template(tmp_path: Path) -> None:
    """All of them but the image, which the snapshot names."""
    keys = KeyFile(tmp_path / "keys.json")
    key = keys.owner(keys.add("one", "", KeyBounds(sandboxes=1, memory_bytes=1 << 30, seconds=60)))
    assert key is not None
    template = SandboxTemplate(
        image="any", memory="96 MiB", cpu_seconds=5.0, network=("https://a.example",), isolation="gvisor"
    )
    holder = SandboxHolder(ServerSettings(templates={"base": template}, snapshots="dios://tries"), keys, None)
    stored = holder.template(key, "snapshot/base.first")
    assert stored == replace(template, image="", snapshot="dios://tries/one.base.first")


async def test_a_key_has_a_bounded_number_of_snapshots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One more is refused, one of the same name takes the place of the former; one is stored at a time."""
    names = [f"one.base.s{number}" for number in range(SNAPSHOTS_MAX)] + ["other.base.x"]
    monkeypatch.setattr("dios.lib.snapshots.snapshots.snapshot_names", lambda _group, *, node: names)  # noqa: ARG005 - its name
    own = Session()
    async with holding(tmp_path, own) as (holder, key):
        held = await opened(holder, key)
        with pytest.raises(RequestError) as refused:
            await holder.snapshot(held, "one-more")
        assert refused.value.kind is Kind.LIMIT
        assert await holder.snapshot(held, "s0") == "snapshot/base.s0"
        assert own.stored == ["dios://tries/one.base.s0"]
        own.answers = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(holder.snapshot, held, "s0")
            await trio.testing.wait_all_tasks_blocked(0.2)
            with pytest.raises(RequestError) as refused:
                await holder.snapshot(held, "s1")
            assert refused.value.kind is Kind.LIMIT
            own.answers.set()


@pytest.mark.parametrize("network", [(), ("https://a.example",)])
@pytest.mark.parametrize("internet", [True, False, None])
def test_a_sandbox_without_network_is_not_one_with(
    network: tuple[str, ...],
    internet: bool | None,  # noqa: FBT001 - a parameter
) -> None:
    """A client that refuses the internet gets no network; true is what some clients always send."""
    new = e2b_api.NewSandbox("base", internet=internet)
    if network and internet is False:
        with pytest.raises(RequestError):
            e2b_api._require_plain(new, has_network=bool(network))
    else:
        e2b_api._require_plain(new, has_network=bool(network))


async def test_a_session_that_ended_by_itself_is_not_running(tmp_path: Path) -> None:
    """Neither interface says so; clients of E2B find none."""
    own = Session()
    async with holding(tmp_path, own) as (holder, key):
        held = await opened(holder, key)
        assert held.state == "running"
        own.ended = "out of memory"
        assert held.state == "ended"
        head = Head("GET", "/v2/sandboxes", {}, {})
        call = Call(holder, head, (held.name,), key, b"", cast("AnswerWriter", None))
        assert (await e2b_api.list_sandboxes(call, NoRequest())).body == b"[]"
        for handler in (e2b_api.info, e2b_api.connect):
            with pytest.raises(RequestError) as refused:
                await handler(call, e2b_api.Connection())
            assert refused.value.kind is Kind.NOT_FOUND


@pytest.mark.parametrize(
    "query", [{"state": "foo"}, {"order": "up"}, {"states": "running"}, {"startedAfter": "1"}]
)
async def test_a_choice_that_the_server_cannot_make_is_refused(tmp_path: Path, query: dict[str, str]) -> None:
    """It is not ignored."""
    async with holding(tmp_path) as (holder, key):
        head = Head("GET", "/v2/sandboxes", query, {})
        with pytest.raises(RequestError):
            await e2b_api.list_sandboxes(
                Call(holder, head, (), key, b"", cast("AnswerWriter", None)), NoRequest()
            )


@pytest.mark.parametrize("fields", ["{}", '{"stdin": "", "pty": ""}'])
async def test_an_input_is_one_of_two(fields: str) -> None:
    """Neither none nor both."""
    body = b'{"process": {"pid": 1}, "input": %s}' % fields.encode()
    request = msgspec.json.decode(body, type=e2b_agent.SendInput)
    with pytest.raises(RequestError) as refused:
        await e2b_agent.send_input(cast("Call", None), request)
    assert refused.value.kind is Kind.INVALID

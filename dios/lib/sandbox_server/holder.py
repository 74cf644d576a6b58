"""The sandboxes that the server holds: their keys, their bounds, and the times of their ends."""

from __future__ import annotations

import contextlib
import functools
import hmac
import logging
import re
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec
import trio

from dios.errors import DiosError
from dios.lib.sandbox_server.failures import Kind, RequestError, as_request_error
from dios.lib.sandbox_server.held import CONTEXTS_MAX, Context, HeldSandbox
from dios.lib.sandbox_server.keys import KeyFile, KeyRecord
from dios.lib.sandbox_server.templates import SandboxTemplate, ServerSettings

SANDBOXES_MAX: Final = 1_000
"""The sandboxes of all keys at once."""
SECONDS_DEFAULT: Final = 300
"""The life of a sandbox whose client names none; that of clients of E2B."""
METADATA_MAX: Final = 100
"""The entries of metadata, and of environment variables."""
TEXT_CHARS_MAX: Final = 32 * 1024
_KEYS_S: Final = 1.0
"""The time after which sandboxes of a revoked key end, at the latest."""
_UNREAD_MAX: Final = 10
SNAPSHOTS_MAX: Final = 16
"""The snapshots of a key."""
_SNAPSHOT: Final = re.compile(r"snapshot/([A-Za-z0-9_-]{1,28})\.([a-z0-9](?:[a-z0-9-]{0,28}[a-z0-9])?)")
"""With the name of a key, a dot and 40 characters, this has the 100 characters of a snapshot's name."""
_SNAPSHOT_PREFIX: Final = "snapshot/"

_log: Final = logging.getLogger(__name__)


class SandboxHolder:
    """The table of sandboxes; ``run`` serves it until it is cancelled, and then ends all of them."""

    def __init__(self, settings: ServerSettings, keys: KeyFile, node: str | Path | None) -> None:
        self.settings: Final = settings
        self.keys: Final = keys
        self._node: Final = node
        self._held: Final[dict[str, HeldSandbox]] = {}
        self._nursery: trio.Nursery | None = None
        self._keys_that_store: Final[set[str]] = set()
        self._unread = 0
        """The times that the keys could not be read, one after the other."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hold sandboxes until this is cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            while True:
                await trio.sleep(_KEYS_S)
                self._end_revoked()

    async def try_templates(self) -> None:
        """Open a sandbox of each template, which brings its image to the node.

        Raises the errors of ``Sandbox``.
        """
        for template in self.settings.templates.values():
            async with template.sandbox(self._node):
                pass

    def _end_revoked(self) -> None:
        try:
            keys = self.keys.keys()
        except (DiosError, OSError) as error:
            # A file that is being replaced by hand is whole the next time.
            self._unread += 1
            _log.error("the keys cannot be read: %s", error)
            if self._unread < _UNREAD_MAX:
                return
            _log.error("all sandboxes end, because their keys may have been revoked")
            keys = {}
        self._unread = 0
        for held in self._held.values():
            if not _is_valid(held.key, keys):
                held.scope.cancel()

    # -- access -----------------------------------------------------------------------------------
    def key_of(self, secret: str) -> KeyRecord:
        """Return the key with this text. Raise RequestError."""
        record = self.keys.owner(secret) if secret else None
        if record is None:
            raise RequestError(
                Kind.UNAUTHENTICATED,
                "no such API key: `dios sandbox key add NAME` makes one, or it was revoked",
            )
        return record

    def require_valid(self, key: KeyRecord) -> None:
        """Raise RequestError for a key that was revoked."""
        if not _is_valid(key, self.keys.keys()):
            raise RequestError(Kind.UNAUTHENTICATED, "the API key was revoked")

    def held(self, key: KeyRecord, name: str) -> HeldSandbox:
        """Return a sandbox of a key. Raise RequestError for others, which look like missing ones."""
        held = self._held.get(name)
        if held is None or held.key.digest != key.digest or not held.is_open:
            raise RequestError(Kind.NOT_FOUND, f"sandbox {name} was not found")
        return held

    def held_with_token(self, name: str, token: str) -> HeldSandbox:
        """Return a sandbox by its name and its access token. Raise RequestError."""
        held = self._held.get(name)
        if held is None or not held.is_open:
            raise RequestError(Kind.GONE, f"the sandbox {name[:40]} was not found")
        if not hmac.compare_digest(held.token.encode(), token.encode(errors="replace")):
            raise RequestError(Kind.UNAUTHENTICATED, "the access token of the sandbox is missing or wrong")
        self.require_valid(held.key)
        return held

    def all_of(self, key: KeyRecord) -> list[HeldSandbox]:
        """Return the sandboxes of a key, the newest first."""
        own = [held for held in self._held.values() if held.key.digest == key.digest and held.is_open]
        return sorted(own, key=lambda held: held.began_s, reverse=True)

    # -- life -------------------------------------------------------------------------------------
    async def create(
        self,
        key: KeyRecord,
        template_name: str,
        *,
        seconds: float | None = None,
        metadata: Mapping[str, str],
        variables: Mapping[str, str],
        request_key: str = "",
    ) -> HeldSandbox:
        """Start a sandbox, and return it. Raise RequestError and the errors of ``Sandbox``.

        A second request with the same ``request_key`` gets the sandbox of the first one.
        """
        template = self.template(key, template_name)
        life_s = self._life(key, seconds)
        if any(len(texts) > METADATA_MAX for texts in (metadata, variables)):
            raise RequestError(Kind.INVALID, f"there are more than {METADATA_MAX} entries: leave some out")
        for former in self._held.values() if request_key else ():
            if former.key.digest == key.digest and former.request_key == request_key:
                if not former.is_open:
                    raise RequestError(Kind.CONFLICT, "this request is under way already")
                asked = (template_name, dict(metadata), dict(variables), seconds)
                if asked != (former.template_name, former.metadata, former.variables, former.seconds):
                    raise RequestError(Kind.CONFLICT, "another request had this key: choose a new one")
                return former
        self._require_room(key, template.memory_bytes)
        held = HeldSandbox(
            key,
            template_name,
            template,
            seconds=seconds,
            metadata=metadata,
            variables=variables,
            request_key=request_key,
        )
        self._held[held.name] = held
        nursery = self._nursery
        assert nursery is not None, "requests come while it runs"  # noqa: S101 - the order of the server
        try:
            await nursery.start(functools.partial(self._hold, held, life_s))
        except BaseException:
            held.scope.cancel()
            self._held.pop(held.name, None)
            raise
        return held

    async def _hold(self, held: HeldSandbox, life_s: float, *, task_status: trio.TaskStatus[None]) -> None:
        """Keep a sandbox open until its scope ends. Errors before it is open are those of ``start``."""
        was_open = False
        try:
            with held.scope:
                async with held.template.sandbox(self._node) as box, contextlib.AsyncExitStack() as stack:
                    context = Context(held.name, box, "")
                    await held.begin(context)
                    held.contexts[held.name] = context
                    stack.push_async_callback(self._close_contexts, held)
                    async with trio.open_nursery() as held.nursery:
                        held.live_for(life_s)
                        held.is_open = was_open = True
                        task_status.started()
                        try:
                            await trio.sleep_forever()
                        finally:
                            held.is_open = False
        except Exception:
            if not was_open:
                raise
            # Nobody waits for its end.
            _log.exception("a sandbox ended with an error")
        else:
            if not was_open:
                raise RequestError(Kind.UNAUTHENTICATED, "the API key was revoked while the sandbox started")
        finally:
            self._held.pop(held.name, None)
            held.over.set()

    async def _close_contexts(self, held: HeldSandbox) -> None:
        for context in list(held.contexts.values()):
            if context.name != held.name:
                try:
                    await context.box.close()
                except Exception:  # noqa: BLE001 - the others end all the same
                    _log.exception("a context ended with an error")

    async def end(self, held: HeldSandbox) -> None:
        """End a sandbox, and wait until its session has ended."""
        held.scope.cancel()
        await held.over.wait()

    async def open_context(self, held: HeldSandbox, folder: str) -> Context:
        """Open a further session of a sandbox, which has variables and files of its own."""
        if held.sessions >= CONTEXTS_MAX:
            raise RequestError(Kind.LIMIT, f"a sandbox has at most {CONTEXTS_MAX} contexts: remove one")
        self._require_room(held.key, held.template.memory_bytes)
        box = held.template.sandbox(self._node)
        context = Context(secrets.token_hex(10), box, folder)
        held.sessions += 1
        try:
            await box.__aenter__()
            await held.begin(context)
            # From here on no other task runs until the end of the sandbox would close it.
            held.require_open()
            held.contexts[context.name] = context
        except BaseException:
            try:
                await box.close()
            finally:
                held.sessions -= 1
            raise
        return context

    async def close_context(self, held: HeldSandbox, name: str) -> None:
        """End a further session of a sandbox."""
        held.require_open()
        context = held.context(name)
        if context.name == held.name:
            raise RequestError(Kind.INVALID, "the context of the sandbox itself ends with the sandbox")
        del held.contexts[context.name]
        try:
            await context.box.close()
        finally:
            held.sessions -= 1

    def set_life(self, held: HeldSandbox, seconds: float | None) -> None:
        """Let a sandbox live for this time from now. Raise RequestError for more than the key has."""
        held.live_for(self._life(held.key, seconds))

    def _life(self, key: KeyRecord, seconds: float | None) -> float:
        if seconds is None:
            return min(SECONDS_DEFAULT, key.bounds.seconds)
        if not 0 <= seconds <= key.bounds.seconds:
            raise RequestError(
                Kind.INVALID,
                f"a sandbox of this key lives for at most {key.bounds.seconds} seconds, not {seconds:g}",
            )
        return seconds

    def _require_room(self, key: KeyRecord, memory_bytes: int) -> None:
        """Raise RequestError if the principal of a key has no room for a further session."""
        own = [held for held in self._held.values() if held.key.principal == key.principal]
        sessions = [held.template.memory_bytes for held in own for _ in range(held.sessions)]
        if len(sessions) >= key.bounds.sandboxes:
            raise RequestError(
                Kind.LIMIT, f"{key.bounds.sandboxes} sandboxes run, the most of this key: end one first"
            )
        if sum(sessions) + memory_bytes > key.bounds.memory_bytes:
            raise RequestError(Kind.LIMIT, "the sandboxes of this key have all of its memory: end one first")
        if len(self._held) >= SANDBOXES_MAX:
            raise RequestError(Kind.LIMIT, "the server has no room for a further sandbox: try later")

    # -- templates and snapshots ------------------------------------------------------------------
    def template(self, key: KeyRecord, name: str) -> SandboxTemplate:
        """Return a template of the settings, or that of a snapshot of the key. Raise RequestError."""
        if name.startswith(_SNAPSHOT_PREFIX):
            origin, place = self._snapshot(key, name)
            # The bounds are those that the template of its sandbox has now.
            return msgspec.structs.replace(self.template(key, origin), image="", snapshot=place)
        template = self.settings.templates.get(name)
        if template is None:
            known = ", ".join(sorted(self.settings.templates))
            raise RequestError(Kind.NOT_FOUND, f"template {name[:80]!r} was not found; there are: {known}")
        return template

    async def snapshot(self, held: HeldSandbox, name: str) -> str:
        """Store the files of a sandbox, and return the name of the template that begins with them.

        A key has ``SNAPSHOTS_MAX``, each no larger than the memory of its sandbox. Raises RequestError.
        """
        origin = held.template_name
        if origin.startswith(_SNAPSHOT_PREFIX):
            origin, _ = self._snapshot(held.key, origin)
        template_name = f"{_SNAPSHOT_PREFIX}{origin}.{name}"
        _, place = self._snapshot(held.key, template_name)
        from dios.lib.snapshots.snapshots import snapshot_names  # noqa: PLC0415 - few clients have snapshots

        group = self.settings.snapshots.removeprefix("dios://")
        with self._storing(held.key):
            names = await trio.to_thread.run_sync(functools.partial(snapshot_names, group, node=self._node))
            others = [other for other in names if other.startswith(f"{held.key.name}.")]
            if len(others) >= SNAPSHOTS_MAX and place.rpartition("/")[2] not in others:
                raise RequestError(
                    Kind.LIMIT, f"this key has {SNAPSHOTS_MAX} snapshots, the most: remove one"
                )
            await held.box.snapshot(place)
        return template_name

    async def remove_snapshot(self, key: KeyRecord, template_name: str) -> None:
        """Remove a snapshot of a key. Raise RequestError if there is none."""
        if not template_name.startswith(_SNAPSHOT_PREFIX):
            raise RequestError(Kind.UNSUPPORTED, "templates are in the settings of the server alone")
        _, place = self._snapshot(key, template_name)
        from dios.lib.snapshots.snapshots import remove_snapshot  # noqa: PLC0415 - few clients have snapshots

        with self._storing(key):
            await trio.to_thread.run_sync(functools.partial(remove_snapshot, place, node=self._node))

    @contextlib.contextmanager
    def _storing(self, key: KeyRecord) -> Iterator[None]:
        """Let a key store or remove one snapshot at a time, so that others find threads."""
        if key.name in self._keys_that_store:
            raise RequestError(Kind.LIMIT, "this key stores or removes a snapshot already: wait for that")
        self._keys_that_store.add(key.name)
        try:
            yield
        finally:
            self._keys_that_store.discard(key.name)

    def _snapshot(self, key: KeyRecord, template_name: str) -> tuple[str, str]:
        """Return the template of a snapshot's sandbox, and its place, which no other key's name reaches."""
        if not self.settings.snapshots:
            raise RequestError(
                Kind.UNSUPPORTED, "this server keeps no snapshots: its settings name no group for them"
            )
        match = _SNAPSHOT.fullmatch(template_name)
        if not match:
            raise RequestError(
                Kind.INVALID,
                "a snapshot is snapshot/TEMPLATE.NAME: NAME has 1 to 30 small letters, digits and inner '-', "
                "and TEMPLATE at most 28 letters, digits, '_' and '-'",
            )
        return match[1], f"{self.settings.snapshots}/{key.name}.{match[1]}.{match[2]}"


def _is_valid(key: KeyRecord, keys: Mapping[str, KeyRecord]) -> bool:
    stored = keys.get(key.name)
    return stored is not None and stored.digest == key.digest


def failure_of(error: Exception) -> RequestError | None:
    """Return the failure of a request for an error, None for a defect."""
    if isinstance(error, RequestError):
        return error
    return as_request_error(error) if isinstance(error, DiosError) else None

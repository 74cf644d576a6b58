"""Read objects of other nodes through this node's cache of their versions (§4.8).

Each read is a call to the object's node, which checks the reference, admits the request and counts it. If
this node has the bytes of a version, the call names the version. The object's node then answers without
bytes, as long as that is the current version. Of several calls of one principal for the same bytes, one
fetches them and the others wait; when the bytes are here, the others make their calls.
"""

from __future__ import annotations

from typing import Final, TypeAlias, cast

from msgspec.structs import replace

from dios import limits
from dios.core import effects
from dios.core.model.accounts import require_bytes
from dios.core.model.records import Holder, Pending
from dios.core.model.type_rules import is_blob
from dios.core.remote import forwarding, held_leases, requests
from dios.core.remote.continuations import EndRead, FitRead, ReadProgress
from dios.core.remote.peers import Cluster, Proxy
from dios.core.remote.version_cache import CachedVersion, Fetch, ReadKey, VersionCache
from dios.core.step import Step
from dios.errors import LimitError, ProtocolError
from dios.ids import NodeId, PayloadId, Principal
from dios.wire import dcp, messages
from dios.wire.types import AcquireIov, Buffering, Resource

Read: TypeAlias = messages.ReadOnce | messages.AcquireRead

_MS: Final = 1_000_000
_FULL_PERCENT: Final = 75


# -- the calls of this node's tasks -------------------------------------------------------------------
def concerns(step: Step, call: messages.PlainCall, target: Proxy) -> bool:
    """Return True if a call reads bytes of a version that may be in the cache or go there.

    Few bytes are kept for reads under leases alone, from the second read of them on: most are read once. The
    bytes of raw objects change within a version.
    """
    if not isinstance(call, messages.ReadOnce | messages.AcquireRead) or step.parts is not None:
        return False
    cluster = step.require_cluster()
    if not (
        cluster.versions.bytes_max > 0
        and is_blob(target.type)
        and target.buffering is Buffering.DOUBLE
        and not target.gone
    ):
        return False
    length = _length(call, target)
    if length >= cluster.versions.least:
        return isinstance(call, messages.ReadOnce) or (not call.buffer and call.iov is AcquireIov.CREATE)
    if length <= 0 or not isinstance(call, messages.ReadOnce) or not cluster.small_versions.bytes_max:
        return False
    return cluster.small_versions.note_read(ReadKey(target.home, target.id, call.offset, call.size))


def _length(call: Read, target: Proxy) -> int:
    """Return the number of bytes that a call reads, as far as this node knows the object's size."""
    left = target.size - call.offset
    return min(call.size, left) if call.size else left


def read(step: Step, task: Holder, seq: int, call: Read, target: Proxy) -> None:
    """Read an object of another node, or wait for the bytes if another call is fetching them."""
    if isinstance(call, messages.ReadOnce) and held_leases.read(step, task, seq, call, target):
        return
    forwarding.translate(task, call)  # it raises an error for a task that has no room for another buffer
    row = forwarding.wait(step, task, seq, call, target.home)
    key = ReadKey(target.home, target.id, call.offset, call.size)
    row.progress = ReadProgress(row.id, key)
    fetch = step.require_cluster().versions.fetches.get((key, task.principal))
    if fetch is None or _usable(step, key) is not None:
        _ask(step, row, row.progress)
    else:
        fetch.waiting[row.id] = None


def _usable(step: Step, key: ReadKey) -> CachedVersion | None:
    """Return the newest cached version for a read, unless a newer one was published."""
    cluster = step.require_cluster()
    epoch = cluster.peer(key.node).epoch
    large, small = cluster.versions.find(key, epoch), cluster.small_versions.find(key, epoch)
    if large is None or small is None:
        return large or small
    return small if small.v_w > large.v_w else large


def _cache_of(cluster: Cluster, payload: PayloadId) -> VersionCache:
    """Return the cache that has the bytes with this number."""
    return cluster.small_versions if payload < 0 else cluster.versions


def _ask(step: Step, row: Pending, progress: ReadProgress) -> None:
    """Make the call to the object's node, with the version whose bytes are here."""
    cluster, key = step.require_cluster(), progress.key
    call, target = cast("Read", row.call), cluster.peer(key.node).proxies.get(key.object)
    cached = _usable(step, key)
    known, lease = None, False
    if cached is not None:
        _cache_of(cluster, cached.payload).use(cached, step.now)
        progress.payload, known = cached.payload, cached.v_w
        lease, progress.asked_ns = held_leases.wants(step, row.task, call), step.now
    elif target is None or cluster.versions.least <= _length(call, target):
        progress.fetching = True
        cluster.versions.fetches.setdefault((key, row.task.principal), Fetch(row.id))
    counting = call if target is None else held_leases.with_count(step, call, target)
    body = dcp.Forward(row.task.caller(), counting, known=known, lease=lease)
    requests.ask_for_call(step, row, key.node, body, FitRead(row.id))


def answered(step: Step, row: Pending, then: FitRead, answer: dcp.Answer) -> None:
    """Answer a read with the bytes that came, which are then kept, or with the cached ones."""
    del then
    progress, call = cast("ReadProgress", row.progress), cast("Read", row.call)
    try:
        offset = 0
        if isinstance(answer, messages.Buffer) and answer.size:
            if step.payload_size or answer.data is not None:
                _keep(step, row, progress.key, answer)
            else:
                answer, offset = _from_cache(step, progress, call, answer)
                held_leases.take(step, row, progress, answer)
        step.reply(forwarding.fit(step, row.task, row.seq, call, answer, offset))
    finally:
        end(step, EndRead(progress, row.task.principal), answer)


def _from_cache(
    step: Step, progress: ReadProgress, call: Read, answer: messages.Buffer
) -> tuple[messages.Buffer, int]:
    """Return the answer with the cached bytes, and their place in the cached payload."""
    cache = _cache_of(step.require_cluster(), progress.payload)
    version = cache.kept.get(progress.payload)
    if version is None or answer.v_w != version.v_w or not version.covers(call.offset, answer.size):
        raise ProtocolError(
            "cannot accept the answer: its bytes are missing, and this node does not have them"
        )
    cache.served += 1
    offset = call.offset - version.key.offset
    if version.data is not None:
        return replace(answer, length=answer.size, data=version.data[offset : offset + answer.size]), 0
    step.payload = version.payload
    return replace(answer, length=answer.size), offset


def _keep(step: Step, row: Pending, key: ReadKey, answer: messages.Buffer) -> None:
    """Put the bytes that came into the cache, if there is room for them in the principal's account."""
    cluster, data = step.require_cluster(), answer.data
    if data is not None and (answer.buffer or not cluster.small_versions.bytes_max):
        return
    cache = cluster.versions if data is None else cluster.small_versions
    length, principal = answer.size, row.task.principal
    cache.fetched += 1
    came = step.payload_size if data is None else len(data)
    is_whole = came == length and (data is not None or answer.length == length)
    if not is_whole or length < cache.least or length > cache.bytes_max:
        return
    account = step.state.account_of(principal)
    step.spend(len(cache.versions) // 64)
    drop(step, cache.make_room(length, principal))
    try:
        require_bytes((account,), length, volatile=True)
    except LimitError:
        return
    if not cache.has_room(length):
        return
    version = (cluster.peer(key.node).epoch, answer.v_w)
    payload = step.payload if data is None else cache.number_data()
    cached = CachedVersion(key, version, payload, length, principal, account, step.now, data)
    if data is None:
        step.emit(effects.KeepPayload(payload))
    drop(step, cache.put(cached))


def end(step: Step, then: EndRead, answer: dcp.Answer) -> None:
    """End a read: unpin the cached bytes, and let the calls go on that waited for the ones it fetched."""
    del answer
    cluster = step.require_cluster()
    progress = then.progress
    cache = _cache_of(cluster, progress.payload)
    version = cache.kept.get(progress.payload)
    if version is not None:
        drop(step, cache.end_use(version))
    cache = cluster.versions
    place = (progress.key, then.principal)
    fetch = cache.fetches.get(place)
    if fetch is None:
        return
    if fetch.call != progress.call:
        fetch.waiting.pop(progress.call, None)
        return
    del cache.fetches[place]
    _go_on(step, cache, fetch, place)


def _go_on(step: Step, cache: VersionCache, fetch: Fetch, place: tuple[ReadKey, Principal]) -> None:
    """Let the waiting calls ask. Without the bytes in the cache only the first does, and fetches them."""
    waiting = list(fetch.waiting)
    for index, call in enumerate(waiting):
        row = step.state.pending.find(call)
        if row is None or not isinstance(row.progress, ReadProgress):
            continue
        step.spend(1)
        _ask(step, row, row.progress)
        if row.progress.fetching:
            cache.fetches[place].waiting.update(dict.fromkeys(waiting[index + 1 :]))
            return


# -- what makes versions leave ------------------------------------------------------------------------
def drop(step: Step, payloads: list[PayloadId]) -> None:
    """Have the host drop the bytes of removed versions."""
    for payload in payloads:
        step.emit(effects.DropPayload(payload))


def forget_node(step: Step, cluster: Cluster, node: NodeId) -> None:
    """Remove the versions of objects of a node that has restarted or was removed."""
    drop(step, cluster.versions.remove_where(node=node))
    cluster.small_versions.remove_where(node=node)
    cluster.leases.forget_node(node)


def drop_unused(step: Step, cluster: Cluster) -> None:
    """Remove the versions that were not used for a long time."""
    since = step.now - limits.REMOTE_CACHE_UNUSED_MS_MAX * _MS
    drop(step, cluster.versions.remove_where(unused_since=since))
    cluster.small_versions.remove_where(unused_since=since)


def yield_room(step: Step, task: Holder) -> bool:
    """Remove versions in favour of a call that a limit has refused. Return True if it may succeed now.

    Those of the caller's principal go first, then all of them if the node's memory is nearly full.
    """
    cluster = step.state.cluster
    if cluster is None:
        return False
    caches = (cluster.versions, cluster.small_versions)
    before = sum(len(cache.versions) for cache in caches)
    for cache in caches:
        drop(step, cache.remove_where(principal=task.principal))
    node = step.state.account
    if before == sum(len(cache.versions) for cache in caches) and any(
        node.used[resource] * 100 >= node.bounds[resource] * _FULL_PERCENT
        for resource in (Resource.VOLATILE_BYTES, Resource.DESCRIPTORS)
    ):
        for cache in caches:
            for version in list(cache.versions.values()):
                drop(step, cache.remove(version))
    return before > sum(len(cache.versions) for cache in caches)

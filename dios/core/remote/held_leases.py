"""Answer repeated reads of other nodes' objects under leases of these nodes (docs/adr/0061).

A lease belongs to one reference and one version. While it lasts, the object's node lets every call wait that
a read must not miss, so the read takes place at the time of its step. ``dios.core.remote.granted_leases``
has the other side.
"""

from __future__ import annotations

from typing import Final, cast

from msgspec.structs import replace

from dios import limits
from dios.core import effects
from dios.core.model.records import Holder, Pending
from dios.core.remote.continuations import ReadProgress
from dios.core.remote.lease_table import HeldLease
from dios.core.remote.peers import Cluster, Peer, Proxy
from dios.core.remote.version_cache import CachedVersion, ReadKey
from dios.core.step import Step
from dios.errors import ProtocolError
from dios.ids import ObjectId, RefId
from dios.wire import dcp, messages
from dios.wire.call_table import kinds_with
from dios.wire.calls import DIRECT_READS_MAX
from dios.wire.types import Flag, Permission, Semantics

_COUNTING: Final = kinds_with("counted")
_MS: Final = 1_000_000
_LEVELS: Final = frozenset({Semantics.ANY, Semantics.MRSW})
"""The levels whose reads no other read disturbs."""


# -- reads --------------------------------------------------------------------------------------------
def read(step: Step, task: Holder, seq: int, call: messages.ReadOnce, target: Proxy) -> bool:
    """Answer a read under the lease of its reference. Return False if it must be a call."""
    cluster = step.require_cluster()
    lease = lease_of(cluster, target, call.ref)
    if lease is None or not is_valid(lease, step.now) or not _may_serve(task, call, lease):
        return False
    cached = _bytes_for(cluster, call, target, lease)
    if cached is None:
        return False
    offset = call.offset - cached.key.offset
    left = cached.length - offset
    length = min(call.size, left) if call.size else left
    lease.reads += call.counted + 1
    cluster.leases.served += 1
    version = messages.Buffer(0, length, target.v_r + lease.reads, lease.v_w, length=length)
    cache = cluster.versions if cached.data is None else cluster.small_versions
    cache.use(cached, step.now)
    cache.end_use(cached)
    if cached.data is None:
        answer = effects.AnswerReceived(task.id, seq, version, cached.payload, length, offset=offset)
        step.reply(answer)
    else:
        step.answer(task, seq, replace(version, data=cached.data[offset : offset + length]))
    return True


def lease_of(cluster: Cluster, target: Proxy, ref: int) -> HeldLease | None:
    """Return the lease of a reference. Its node chose the id, perhaps that of another node's reference."""
    return cluster.leases.held.get((target.home, RefId(ref)))


def is_valid(lease: HeldLease, now: int) -> bool:
    """Return True if a lease has not ended."""
    return now < lease.ends


def _may_serve(task: Holder, call: messages.ReadOnce, lease: HeldLease) -> bool:
    reference = task.table.find(call.ref)
    return (
        reference is not None
        and reference.object.id == lease.object
        and Permission.READ in reference.permissions
        and call.semantics in _LEVELS
        and not call.flags & ~int(Flag.NON_BLOCKING)
        and lease.reads + call.counted < DIRECT_READS_MAX
    )


def _bytes_for(
    cluster: Cluster, call: messages.ReadOnce, target: Proxy, lease: HeldLease
) -> CachedVersion | None:
    """Return the kept bytes of the lease's version for a read, if the range is in them."""
    if lease.epoch != cluster.peer(target.home).epoch:
        return None
    key = ReadKey(target.home, target.id, call.offset, call.size)
    for cache in (cluster.small_versions, cluster.versions):
        cached = cache.find(key, lease.epoch)
        if cached is not None and cached.v_w == lease.v_w and call.offset < cached.key.offset + cached.length:
            return cached
    return None


# -- the way to a lease -------------------------------------------------------------------------------
def wants(step: Step, task: Holder, call: messages.PlainCall) -> bool:
    """Return True if a read through this reference may be answered here the next time."""
    if not isinstance(call, messages.ReadOnce) or call.semantics not in _LEVELS:
        return False
    reference = task.table.find(call.ref)
    return step.require_cluster().leases.enabled and reference is not None and not reference.expires_ns


def granted(step: Step, peer: Peer, message: dcp.Leased) -> None:
    """Note that a node has granted a lease. The answer to the same request follows."""
    if message.number >= peer.next_number:
        raise ProtocolError(f"cannot accept a lease of request {message.number}: it was never made")
    request = peer.asked.get(message.number)
    row = None if request is None or request.call is None else step.state.pending.find(request.call)
    if row is not None and isinstance(row.progress, ReadProgress):
        row.progress.is_leased = True


def take(step: Step, row: Pending, progress: ReadProgress, answer: messages.Buffer) -> None:
    """Take the lease that came with the confirmation of a version, unless it was called back already."""
    reference = row.task.table.find(getattr(row.call, "ref", 0))
    if not progress.is_leased or reference is None or not isinstance(reference.object, Proxy):
        return
    target, cluster = reference.object, step.require_cluster()
    ends = progress.asked_ns + limits.LEASE_MS * _MS
    if target.home != progress.key.node or target.id != progress.key.object or ends <= step.now:
        return
    if is_older(progress, target):
        return
    epoch = cluster.peer(target.home).epoch
    cluster.leases.hold(target.home, reference.id, HeldLease(target.id, epoch, answer.v_w, ends))


def is_older(progress: ReadProgress, target: Proxy) -> bool:
    """Return True if a read was sent before the last call-back, which may have been for its lease."""
    return progress.asked_ns <= target.called_back


def called_back(step: Step, peer: Peer, target: ObjectId) -> None:
    """Return the leases on an object of another node: no further read uses them."""
    step.require_cluster().leases.end(peer.node, target)
    proxy = peer.proxies.get(target)
    if proxy is not None:
        proxy.called_back = step.now


def with_count(step: Step, call: messages.PlainCall, target: Proxy) -> messages.PlainCall:
    """Return a call with the number of reads through its reference that its object's node has not counted."""
    if type(call) not in _COUNTING:
        return call
    call = cast("messages.ReadOnce", call)  # the others have the same two fields
    lease = lease_of(step.require_cluster(), target, call.ref)
    if lease is None or not lease.reads:
        return call
    counted = min(call.counted + lease.reads, DIRECT_READS_MAX)
    lease.reads -= counted - call.counted
    return replace(call, counted=counted)

"""Builds environments for a program, and brings them to the nodes on which its tasks run."""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from dios.client.ops.attributes import Handed
from dios.client.plain_text import plain
from dios.client.sync.node import Node, Reference
from dios.errors import InvalidError, MissingEnvironmentError, NotSupportedError
from dios.lib.environments import archives
from dios.lib.environments.archives import EnvironmentArchive
from dios.lib.environments.building import build
from dios.lib.environments.requests import request_for
from dios.lib.environments.sources import source_at
from dios.wire.environments import CONTENT
from dios.wire.types import Isolation, NameKind, ObjectType, Semantics

_REPORT_AFTER_S: Final = 2.0
_NOTHING: Final = b"pass"
_LABEL: Final = "environment"


def environment_on(
    node: Node,
    packages: Iterable[str],
    *,
    wheels: str | os.PathLike[str] | None = None,
    hosts: Sequence[str] = ("",),
    template: str = "",
    again: bool = False,
) -> str:
    """Install packages for tasks on some nodes, and return the name that takes the place of a template.

    ``packages`` are requirements such as "pandas==2.3", or files of them such as "@lock.txt" and
    "@pyproject.toml:GROUP", which pip installs from wheels: those in the folder
    ``wheels``, or "dios://ALIAS/DIRECTORY" of a group, or those of the package index that pip is configured
    for. The result is kept, so that the same request installs nothing later, unless ``again`` is set.
    ``hosts`` are names of nodes, "" for the asked node. Longer work is reported on standard error. With a
    ``template`` this is an error, because a task has one or the other.

    Raises InvalidError for what cannot be installed, with the reason; NotSupportedError for a node or a
    machine that can have no environments, NoSpaceError if there is no room, TooLargeError and TimeLimitError
    over a bound.
    """
    if template:
        raise InvalidError(
            "a task starts from a template or in an environment: leave out template or packages"
        )
    if node.ambient:
        raise NotSupportedError("a task cannot install packages: do it where the executor is made")
    request = request_for(packages, source_at(node, wheels))
    archive = None if again else archives.kept(request.digest)
    if archive is not None:
        # A damaged one is refused or, if it is empty, not mapped; one that was replaced meanwhile is gone.
        with contextlib.suppress(InvalidError, FileNotFoundError, ValueError):
            return brought(node, archive, hosts, str(request))
    with reported(f"installing {request}"):
        archive = build(request)
    return brought(node, archive, hosts, str(request))


def brought(
    node: Node,
    archive: EnvironmentArchive,
    hosts: Sequence[str],
    content: str,
    isolation: Isolation = Isolation.KERNEL,
) -> str:
    """Bring an archive to nodes that lack it, and return the name of its environment.

    ``content`` describes it in a report. A task with this ``isolation`` tries it there. Raises the errors of
    ``environment_on``.
    """
    for host in hosts:
        with reported(f"bringing {content} to {host or 'the node'}"):
            _bring(node, archive, host, isolation)
    return archive.name


def hosts_for(node: Node, host: str, *, scheduled: bool) -> tuple[str, ...]:
    """Return the nodes on which tasks may start: one, or with ``scheduled`` all that are up."""
    if host or not scheduled:
        return (host,)
    rows = [row for row in node.nodes() if row.usable and not row.draining]
    return tuple("" if row.here else row.name for row in rows) or ("",)


def _bring(node: Node, archive: EnvironmentArchive, host: str, isolation: Isolation) -> None:
    """Start a task that does nothing in the environment; a node that lacks it gets the archive with it."""
    try:
        _start(node, archive, host, {}, isolation)
    except MissingEnvironmentError:
        with (
            archive.path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped,
            memoryview(mapped) as view,
            _blob_of(node, view, host) as blob,
        ):
            _start(node, archive, host, {CONTENT: blob.restrict("read")}, isolation)


def _blob_of(node: Node, archive: memoryview, host: str) -> Reference:
    """Return a blob with an archive on the node of ``host``."""
    blob = node.create(ObjectType.SHMEM_BLOB, naming=NameKind.ANONYMOUS, host=host)
    try:
        request = blob.write(len(archive), Semantics.ANY, blank=True, replace=True)
        try:
            request.fill(archive, 0)
            request.finish(len(archive))
        except BaseException:
            request.release()
            raise
    except BaseException:
        blob.close()
        raise
    return blob


def _start(
    node: Node, archive: EnvironmentArchive, host: str, inputs: Mapping[str, Handed], isolation: Isolation
) -> None:
    with node.run(
        _NOTHING,
        label=_LABEL,
        inputs=inputs,
        template=archive.name,
        host=host,
        local=not host,
        isolation=isolation,
    ) as task:
        task.wait()


@contextlib.contextmanager
def reported(action: str) -> Iterator[None]:
    """Say what goes on if the body takes longer than two seconds."""
    timer = threading.Timer(_REPORT_AFTER_S, _say, (action,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _say(action: str) -> None:
    sys.stderr.write(f"dios: {plain(action)} …\n")
    sys.stderr.flush()

"""``dios put``, ``ls``, ``get`` and ``rm``: files as durable objects."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO, Final

import typer

from dios import limits
from dios.cli.common.context import CataloguedFile, CommandContext, opened
from dios.cli.common.output import (
    JsonOption,
    NodeOption,
    reporting,
    say,
    size_text,
    table,
    time_text,
    transfer,
    write_json,
)
from dios.cli.nodes.members import silent
from dios.client.sync.node import Reference
from dios.errors import InvalidError, NotPermittedError, UnreachableError
from dios.ids import Name
from dios.lib.catalogue import CatalogueEntry, checked_file
from dios.wire.nametext import fingerprint, format_name
from dios.wire.types import ObjectType, Permission, Semantics

CHUNK_BYTES: Final = 4 * limits.MIB

app: Final = typer.Typer(rich_markup_mode=None)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="A name, a file as put, or a fingerprint.")]


def _store(
    place: CommandContext, group: Reference, path: Path, size: int, moved: Callable[[int], None]
) -> Reference:
    """Make a durable object of a file; destroy it if the command is interrupted."""
    with path.open("rb") as file:
        if size <= limits.INLINE_BYTES_MAX:
            data = file.read(size)
            moved(len(data))
            return place.node.create(ObjectType.DURABLE_BLOB, groups=[group], data=data)
        made = place.node.create(ObjectType.DURABLE_BLOB, groups=[group])
        try:
            with made.write(size, Semantics.EXCL, replace=True, blank=True) as request:
                done = 0
                while done < size:
                    with request.view[done : done + CHUNK_BYTES] as part:
                        got = _fill(file, part)
                    done += got
                    moved(got)
        except BaseException:
            made.destroy()
            raise
    return made


def _fill(file: BinaryIO, part: memoryview) -> int:
    got = os.readv(file.fileno(), [part])
    if not got:
        raise InvalidError(f"{file.name} became shorter while it was read. Put it again.")
    return got


@app.command(
    epilog="\b\nExamples:\n  dios put data/*.txt --group analytics\n"
    "  dios put report.pdf --group analytics --as july/report.pdf\n"
    "  dios put big.csv --group analytics --json | jq -r .[].name"
)
def put(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files to store.")],
    *,
    group: Annotated[str, typer.Option("--group", "-g", metavar="ALIAS", help="The group of the objects.")],
    label: Annotated[
        str, typer.Option("--as", metavar="FILE", help="Store a single file under this name.")
    ] = "",
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Store files as durable objects, print their names, and add them to the group's catalogue.

    When the command ends successfully, the objects survive a power failure.
    """
    with reporting("dios put", as_json=as_json):
        if label and len(files) != 1:
            raise InvalidError("--as is for a single file; put the others separately")
        labels = [checked_file(label or str(path)) for path in files]
        sizes = [_size_of(path) for path in files]
        with opened(node, [group]) as place:
            target = place.group(group)
            stored: list[CatalogueEntry] = []
            try:
                with transfer("put", sum(sizes), steps=len(files)) as moved:
                    for path, file, size in zip(files, labels, sizes, strict=True):
                        made = _store(place, target, path, size, moved)
                        stored.append(CatalogueEntry(file, made.name or b"", size, time.time_ns()))
                        made.close()
            finally:
                # Also after a failure: objects already stored must stay reachable.
                if stored:
                    _show_put(stored, as_json=as_json)
                    place.remember(group, stored)


def _size_of(path: Path) -> int:
    status = path.stat()
    if not path.is_file():
        raise InvalidError(f"{path} is not a regular file; put files separately")
    if status.st_size > limits.BLOB_BYTES_MAX:
        raise InvalidError(
            f"{path} has {size_text(status.st_size)}; an object can have {size_text(limits.BLOB_BYTES_MAX)}"
        )
    return status.st_size


def _show_put(stored: list[CatalogueEntry], *, as_json: bool) -> None:
    if as_json:
        write_json([_described(entry) for entry in stored])
        return
    for entry in stored:
        sys.stdout.write(f"{format_name(entry.name)}  {entry.file}\n")


def _described(entry: CatalogueEntry) -> dict[str, str | int]:
    return {
        "file": entry.file,
        "name": format_name(entry.name),
        "fingerprint": fingerprint(entry.name),
        "size": entry.size,
        "put": entry.put_ns,
    }


@app.command("ls", epilog="\b\nExamples:\n  dios ls\n  dios ls --group analytics --json")
def list_objects(
    *,
    group: Annotated[
        list[str] | None, typer.Option("--group", "-g", metavar="ALIAS", help="Only this group.")
    ] = None,
    names: Annotated[bool, typer.Option("--names", help="Also show the names, which are secret.")] = False,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the files that were put into your groups, from the groups' catalogues.

    A node itself never lists names, so that only users who know a name can find its object.
    """
    with reporting("dios ls", as_json=as_json), opened(node, group or ()) as place:
        for alias in group or ():
            place.group(alias)
        found = place.catalogued(group)
        if as_json:
            write_json([_listed(item, names=names) for item in found])
        elif not found:
            say("there are no files yet; next: dios put FILE --group ALIAS")
        else:
            head = ("FILE", "SIZE", "PUT", "GROUP", "FINGERPRINT", *(("NAME",) if names else ()))
            table(head, [_row(item, names=names) for item in found], right=("SIZE",), whole=names)


def _listed(item: CataloguedFile, *, names: bool) -> dict[str, str | int]:
    described = {"group": item.group, **_described(item.entry)}
    if not names:
        del described["name"]
    return described


def _row(item: CataloguedFile, *, names: bool) -> tuple[str, ...]:
    entry = item.entry
    row = (entry.file, size_text(entry.size), time_text(entry.put_ns), item.group, item.fingerprint)
    return (*row, format_name(entry.name)) if names else row


@contextmanager
def _destination(output: Path | None) -> Iterator[BinaryIO]:
    """Open the output: a file that appears only when it is complete, or standard output."""
    if output is None or str(output) == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    # For a link, write the file that it points to.
    output = output.resolve()
    if output.is_dir():
        raise InvalidError(f"{output} is a directory; give a file in it")
    if output.exists() and not output.is_file():
        # Write to a device or pipe directly: renaming a file over it would replace it for everybody.
        with output.open("wb") as device:
            yield device
        return
    fd, temporary = tempfile.mkstemp(prefix=f".{output.name}.", dir=output.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            yield file
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)
        Path(temporary).replace(output)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@app.command(
    epilog="\b\nExamples:\n  dios get a.txt\n  dios get a.txt --output copy.txt\n  dios get 3f9a1c | wc"
)
def get(
    name: NameArgument,
    *,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write to FILE; default: standard output."),
    ] = None,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the bytes of an object to a file or to standard output.

    With --output the file appears when it is complete. --json describes the written file, and needs --output.
    """
    with reporting("dios get", as_json=as_json):
        if as_json and output is None:
            raise InvalidError(
                "--json would mix with the object's bytes on standard output; add --output FILE"
            )
        with opened(node) as place:
            reference = place.object(name)
            size = reference.size
            with (
                reference.read(Semantics.MRSW) as request,
                _destination(output) as file,
                transfer(output.name if output else "get", size) as moved,
            ):
                size = len(request.view)
                for start in range(0, size, CHUNK_BYTES):
                    with request.view[start : start + CHUNK_BYTES] as part:
                        file.write(part)
                        moved(len(part))
            if as_json:
                write_json({"file": str(output), "size": size, "fingerprint": reference.fingerprint})


@app.command(epilog="\b\nExamples:\n  dios rm a.txt b.txt\n  dios rm 3f9a1c")
def rm(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="Names, files as put, or fingerprints.")
    ],
    *,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Destroy objects with all their replicas, for all users, and remove them from the catalogues.

    Holders of a reference get ESTALE from then on. If a node does not answer, an object that may have a
    replica there stays in its catalogue, so that you can destroy it when the node is back.
    """
    with reporting("dios rm", as_json=as_json), opened(node) as place:
        # Look up all names first, so that an error in the last one destroys nothing.
        targets = [(text, *place.find(text)) for text in names]
        gone = [_destroy(place, text, name, found) for text, name, found in targets]
        left = [text for text, _, whole in gone if not whole]
        if as_json:
            write_json(
                [
                    {
                        "argument": text,
                        "destroyed": replicas > 0,
                        "replicas": replicas,
                        "incomplete": not whole,
                    }
                    for text, replicas, whole in gone
                ]
            )
        if left:
            raise UnreachableError(
                f"{silent(place.node.nodes())} did not answer and may have replicas of {', '.join(left)}. "
                "Repeat the command when `dios node ls` shows that all nodes are alive."
            )


def _destroy(
    place: CommandContext, text: str, name: Name, found: CataloguedFile | None
) -> tuple[str, int, bool]:
    """Destroy an object. Return its text, the number of destroyed replicas, and True if those were all."""
    known = place.node.lookup(name)
    replicas = {reference.object_id: reference for reference in known}.values()
    if not all(reference.permissions & Permission.DELETE for reference in replicas):
        raise NotPermittedError(f"the reference to {text} lacks the right to delete")
    if not replicas and found is None and not known.incomplete:
        raise InvalidError(f"cannot find {fingerprint(name)}: it was destroyed, or is in no group of yours")
    for reference in replicas:
        reference.destroy()
    if found is not None and not known.incomplete:
        place.forget(found)
    return text, len(replicas), not known.incomplete

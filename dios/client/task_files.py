"""Inputs and outputs of a task as files of its private folder: ``/inputs/LABEL`` and ``/outputs/LABEL``.

Loaded only in a task whose program wants files.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from dios.errors import InvalidError, NotSupportedError
from dios.wire.images import RESERVED

if TYPE_CHECKING:
    from dios.client.sync.node import Node, Reference

INPUTS: Final = "/inputs"
OUTPUTS: Final = "/outputs"
IN_IMAGE: Final = __file__.startswith(f"/{RESERVED}/")
"""True in a task whose root file system is that of an image: this module comes from its mount of Python."""

_WRITE_BYTES: Final = 1 << 30
_READ_ONLY_FILE: Final = 0o400
_READ_ONLY_DIRECTORY: Final = 0o500


class TaskFiles:
    """The files of a task: inputs are copied when it starts, outputs when it has ended successfully."""

    def __init__(self, node: Node, inputs: Iterable[str], outputs: Iterable[str]) -> None:
        self._inputs: Final = [(label, _labelled(node.inputs, label)) for label in inputs]
        self._outputs: Final = [(label, _labelled(node.outputs, label)[0]) for label in outputs]

    def place(self) -> None:
        """Copy the inputs into ``/inputs``, and make an empty ``/outputs``.

        Inputs with the same label are the parts of one file in their order. One is mapped at a time.
        Raise ``NotSupportedError`` in a task without a private folder, ``InvalidError`` for an input that has
        no room in it.
        """
        for path in (INPUTS, OUTPUTS):
            if IN_IMAGE:
                os.makedirs(path, exist_ok=True)  # noqa: PTH103 - a task loads no pathlib at its start
                continue
            if not os.path.islink(path):  # noqa: PTH114 - a task loads no pathlib at its start
                raise NotSupportedError(
                    f"the task cannot have files in {path}: it has no private folder. Its inputs are in "
                    "node.inputs, its outputs in node.outputs."
                )
            os.mkdir(os.path.realpath(path))  # noqa: PTH102 - the same
        for label, references in self._inputs:
            _write(f"{INPUTS}/{label}", references, label)
        os.chmod(INPUTS, _READ_ONLY_DIRECTORY)  # noqa: PTH101 - the same

    def publish(self) -> None:
        """Write the files in ``/outputs`` to their objects, each as a whole. Raise ``DiosError``.

        An output without a file stays as it is.
        """
        for label, reference in self._outputs:
            try:
                number = os.open(f"{OUTPUTS}/{label}", os.O_RDONLY)
            except FileNotFoundError:
                continue
            try:
                size = os.fstat(number).st_size
                if not size:
                    reference.write_bytes(b"", replace=True)
                    continue
                # Not closed here: after an error the frames of its traceback still have views of it.
                content = memoryview(mmap.mmap(number, size, access=mmap.ACCESS_READ))
                reference.write_bytes(content, replace=True)
            finally:
                os.close(number)


def _labelled(references: Iterable[Reference], label: str) -> list[Reference]:
    """Return all references with a label; InvalidError if there is none."""
    labelled = [reference for reference in references if reference.label == label]
    if not labelled:
        raise InvalidError(f"the task got no input or output with the label {label!r}, which shall be a file")
    return labelled


def _write(path: str, references: Iterable[Reference], label: str) -> None:
    if IN_IMAGE:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108 - a task loads no pathlib at its start
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _READ_ONLY_FILE)
    try:
        for reference in references:
            with reference.view_bytes() as content:
                done = 0
                while done < content.nbytes:
                    with content[done : done + _WRITE_BYTES] as part:
                        done += os.write(number, part)
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EFBIG}:
            raise
        room = os.statvfs(INPUTS)
        size = sum(reference.size for reference in references)
        raise InvalidError(
            f"the input {label!r} of {size:,} bytes has no room in {INPUTS}: the task's private "
            f"folder holds {room.f_blocks * room.f_frsize:,} bytes. Give the task a higher memory limit, or "
            "read the input from node.inputs."
        ) from None
    finally:
        os.close(number)

"""The inputs and outputs of ``dios run``: what the task may read, and what is stored after its success."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dios import limits
from dios.cli.common.context import CommandContext
from dios.client.ops.attributes import Handed
from dios.client.program import file_label
from dios.client.sync.node import Reference
from dios.errors import InvalidError
from dios.lib.counters import show_counters
from dios.lib.files.paths import checked_path
from dios.lib.files.staging import StagedFiles
from dios.wire.types import NameKind, ObjectType


class InputOfRun(NamedTuple):
    """An object that the task may read under ``label``; ``is_file`` if it also finds it as a file."""

    label: str
    name: str
    is_file: bool


class OutputOfRun(NamedTuple):
    """An output: the object that the task writes, and the place of its content after a success."""

    label: str
    group: str
    path: str
    written: Reference


class FilesOfRun(NamedTuple):
    """All inputs and outputs of one command."""

    place: CommandContext
    inputs: tuple[InputOfRun, ...]
    outputs: tuple[OutputOfRun, ...]

    @property
    def labels(self) -> list[str]:
        """The labels of the inputs and outputs that are files."""
        return [task_input.label for task_input in self.inputs if task_input.is_file] + [
            output.label for output in self.outputs
        ]

    def inputs_at(self, place: CommandContext) -> list[Handed]:
        """Return the inputs as references of the connection of ``place``.

        A file in parts is one reference for each part, which all have its label. Raise ``InvalidError``.
        """
        references = [
            reference.restrict("read", "delegate", label=task_input.label)
            for task_input in self.inputs
            for reference in (
                place.file_objects(task_input.name) if task_input.is_file else [place.object(task_input.name)]
            )
        ]
        if len(references) > limits.RUN_INPUTS_MAX:
            raise InvalidError(
                f"a task gets at most {limits.RUN_INPUTS_MAX} objects as inputs, and these files have "
                f"{len(references)} parts. Give the task the group, and let it read the files as dios:// "
                "paths."
            )
        return references

    def outputs_at(self) -> list[Handed]:
        """Return the outputs, which the task may write and read."""
        return [output.written.restrict("read", "write", label=output.label) for output in self.outputs]

    def store(self) -> None:
        """Store every output under its path; each group changes as a whole. Raise ``InvalidError``.

        Nothing is stored if the task left out an output.
        """
        for expected in self.outputs:
            show_counters(expected.written)
        missing = [f"/outputs/{expected.label}" for expected in self.outputs if not expected.written.v_w]
        if missing:
            raise InvalidError(
                f"the task ended with 0, but left no file {', '.join(missing)}. Nothing was stored."
            )
        for group in dict.fromkeys(expected.group for expected in self.outputs):
            # The outputs of one run have the same label, and so have the files.
            secrecy = self.outputs[0].written.secrecy
            staged = StagedFiles(self.place.files(group), secrecy=secrecy)
            try:
                for output in self.outputs:
                    if output.group == group:
                        staged.add_bytes(output.path, output.written.view_bytes())
            except BaseException:
                staged.discard()
                raise
            staged.publish()


def files_of_run(
    place: CommandContext,
    groups: Sequence[str],
    inputs: Sequence[str],
    outputs: Sequence[str],
    secrecy: Sequence[str] | None = None,
) -> FilesOfRun:
    """Return the inputs and outputs that options name. Raise ``InvalidError`` for a bad one.

    ``secrecy`` are the tags of the outputs, in addition to those of their groups.
    """
    if secrecy and not outputs:
        raise InvalidError(
            "--secrecy is for outputs, and there is none: add --output FILE=PATH, or leave it out"
        )
    read = tuple(_input(text) for text in inputs)
    wanted = [_output(place, groups, text) for text in outputs]
    labels = [task_input.label for task_input in read if task_input.is_file] + [
        label for label, _, _ in wanted
    ]
    for label in labels:
        if labels.count(label) > 1:
            raise InvalidError(f"two inputs or outputs have the file name {label!r}; give each its own")
    written = tuple(
        OutputOfRun(
            label,
            group,
            path,
            place.node.create(
                ObjectType.SHMEM_BLOB,
                naming=NameKind.ANONYMOUS,
                secrecy=(*(secrecy or ()), *place.files(group).secrecy) or None,
            ),
        )
        for label, group, path in wanted
    )
    return FilesOfRun(place, read, written)


def _input(text: str) -> InputOfRun:
    label, is_file, name = text.partition("=")
    return (
        InputOfRun(file_label(label), name, is_file=True)
        if is_file
        else InputOfRun(text, text, is_file=False)
    )


def _output(place: CommandContext, groups: Sequence[str], text: str) -> tuple[str, str, str]:
    """Return the label, the group and the path of an output."""
    label, is_file, file = text.partition("=")
    if not is_file or not file:
        raise InvalidError(
            f"--output {text!r} needs the name of the file and a path, like out.csv=result.csv"
        )
    location = place.split(file)
    if location is not None and location[1] and "/" in file:
        return file_label(label), location[0], checked_path(location[1])
    if not groups:
        raise InvalidError(f"--output {text!r} needs a group: add --group ALIAS, or give ALIAS/{file}")
    return file_label(label), groups[0], checked_path(file)

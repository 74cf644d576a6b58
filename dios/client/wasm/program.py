"""Runs the program of a task that is a WebAssembly module: a command of WASI preview 1.

The module is compiled in the task itself, behind the same sandbox as any pure task. So a module that misleads
the compiler gets no further than a Python program, which can run machine code, too.
"""

from __future__ import annotations

import functools
import os
import resource
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from dios.client.program import LABEL_BYTES_MAX
from dios.client.sync.node import Stream
from dios.client.wasm.descriptors import (
    DescriptorTable,
    Directory,
    FolderDirectory,
    InputDirectory,
    InputFile,
    OpenFile,
    OutputDirectory,
    StreamInput,
    StreamOutput,
)
from dios.client.wasm.guest_memory import GuestMemory
from dios.client.wasm.host_calls import MODULE, SIGNATURES, WITHOUT_RESULT, HostCalls, ModuleExit
from dios.installation import extra_command
from dios.limits import WASM_TABLE_ELEMENTS_MAX

if TYPE_CHECKING:
    from wasmtime import Linker, Store, Trap

    from dios.client.sync.node import Node, Reference

FAILED: Final = 1
INPUTS: Final = "/inputs"
OUTPUTS: Final = "/outputs"
TEMPORARY: Final = "/tmp"  # noqa: S108 - the module's name for the private folder
_COMPONENT: Final = b"\0asm\x0d\0\x01\0"
_ENTRY: Final = "_start"
_MEMORY: Final = "memory"
_TRAP: Final = "wasm trap: "


def labels_of_files(references: tuple[Reference, ...]) -> tuple[str, ...]:
    """Return the labels that can be names of files, each once."""
    labels = dict.fromkeys(reference.label for reference in references)
    return tuple(label for label in labels if _is_file_name(label))


def run_module(module: bytes, node: Node, label: str) -> int:
    """Run a module with the arguments, inputs and private folder of this task, and return its exit status.

    A module that cannot be run, and one that ends by a trap, return 1 and print the reason on standard error.
    """
    try:
        import wasmtime  # noqa: PLC0415 - an extra that most tasks do not need
    except ImportError as error:
        return _refuse(
            f"the package wasmtime cannot be loaded on this node ({error}). Install it there: "
            f"{extra_command('wasm')}"
        )
    if module.startswith(_COMPONENT):
        return _refuse(
            "it is a component (WASI preview 2). Compile the program as a module of preview 1, for example "
            "for the target wasm32-wasip1"
        )
    calls = HostCalls([label, *node.arguments], _environment(), DescriptorTable(_directories(node)))
    try:
        store = _store()
        compiled = wasmtime.Module(store.engine, module)
        linker = wasmtime.Linker(store.engine)
        _define(linker, calls)
        instance = linker.instantiate(store, compiled)
        exports = instance.exports(store)
        entry, memory = exports.get(_ENTRY), exports.get(_MEMORY)
        if not isinstance(entry, wasmtime.Func):
            return _refuse(f"it is no program: it exports no function {_ENTRY}")
        if isinstance(memory, wasmtime.Memory):
            calls.memory = GuestMemory(store, memory)
        entry(store)
    except ModuleExit as end:
        return end.status & 0xFF
    except wasmtime.Trap as trap:
        return _tell(trap)
    except wasmtime.WasmtimeError as error:
        return _refuse(str(error))
    return 0


def _store() -> Store:
    """Return an empty store of an engine that starts no thread and reads no file."""
    import wasmtime  # noqa: PLC0415 - the same

    config = wasmtime.Config()
    # The compiler's threads would count as processes of the task, and start with each task.
    config.parallel_compilation = False
    # Needs a file in memory, which the filter refuses.
    config.memory_init_cow = False
    config.wasm_threads = False
    store = wasmtime.Store(wasmtime.Engine(config))
    limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
    store.set_limits(
        memory_size=-1 if limit == resource.RLIM_INFINITY else limit, table_elements=WASM_TABLE_ELEMENTS_MAX
    )
    return store


def _define(linker: Linker, calls: HostCalls) -> None:
    from wasmtime import FuncType, ValType  # noqa: PLC0415 - the same

    kinds = {"i": ValType.i32(), "I": ValType.i64()}
    for name, function in calls.functions().items():
        results = [] if name == WITHOUT_RESULT else [kinds["i"]]
        kind = FuncType([kinds[letter] for letter in SIGNATURES[name]], results)
        linker.define_func(MODULE, name, kind, function)


def _environment() -> dict[str, str]:
    return {"HOME": TEMPORARY, "TMPDIR": TEMPORARY} if _has_folder() else {}


def _has_folder() -> bool:
    """Return True in a task with a private folder, which is where the link leads."""
    return os.path.islink(INPUTS)  # noqa: PTH114 - a task loads no pathlib at its start


def _directories(node: Node) -> dict[str, Directory]:
    inputs: dict[str, Callable[[], OpenFile]] = {}
    for index, reference in enumerate(node.inputs):
        name = reference.label if _is_file_name(reference.label) else str(index)
        inputs.setdefault(name, _opener(reference))
    directories: dict[str, Directory] = {INPUTS: InputDirectory(inputs)}
    if _has_folder():
        temporary = FolderDirectory(os.environ.get("TMPDIR", TEMPORARY))
        directories |= {TEMPORARY: temporary, ".": temporary}
        if labels_of_files(node.outputs):
            outputs = [output for output in node.outputs if isinstance(output, Stream)]
            streams = {output.label: StreamOutput(output.send) for output in outputs}
            directories[OUTPUTS] = OutputDirectory(os.path.realpath(OUTPUTS), streams)
    return directories


def _opener(reference: Reference) -> Callable[[], OpenFile]:
    """Return a function that opens an input; the bytes of a blob are mapped when it is opened first."""
    if isinstance(reference, Stream):
        stream = StreamInput(reference.receive)
        return lambda: stream
    content = functools.cache(lambda: reference.view_bytes().toreadonly())
    return lambda: InputFile(content())


def _is_file_name(label: str) -> bool:
    try:
        size = len(label.encode())
    except UnicodeEncodeError:
        return False
    return 0 < size <= LABEL_BYTES_MAX and label not in {".", ".."} and not {"/", "\0"} & set(label)


def _refuse(reason: str) -> int:
    sys.stderr.write(f"cannot run the WebAssembly module: {reason}\n")
    sys.stderr.flush()
    return FAILED


def _tell(trap: Trap) -> int:
    """Print a trap like an exception of Python, with the module's functions, the innermost last."""
    lines = [
        f"  module, function {frame.func_name or frame.func_index}, at offset {frame.module_offset:#x}"
        for frame in reversed(trap.frames)
    ]
    reason = trap.message.strip().splitlines() or [""]
    last = f"wasm.Trap: {reason[-1].strip().removeprefix(_TRAP)}"
    text = ["Traceback (most recent call last):", *lines, last]
    sys.stderr.write("\n".join(text) + "\n")
    sys.stderr.flush()
    return FAILED

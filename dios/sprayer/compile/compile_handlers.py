"""Compiles the handlers of a network function into one function, which workers call by its address.

The attributes of ``self`` are passed in an array of numbers, where an array is its address and its shape. For
each class the text of a small function is generated that reads them again. The compiled code is kept on disk
(``kept_code``). The loop of the workers is in ``runtime/worker_kernels.py`` and is compiled once for all
functions.
"""

from __future__ import annotations

import dis
import inspect
import re
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt
from numba.core.errors import NumbaError, UnsupportedBytecodeError

from dios.sprayer.compile.intrinsics import KernelFunction, array_at, callable_at
from dios.sprayer.compile.kept_code import name_of
from dios.sprayer.compile.tuple_methods import Function, with_methods
from dios.sprayer.flows.flow_table import Flows
from dios.sprayer.network_function import HandlerError, NetworkFunction
from dios.sprayer.packets.packet import Packets

_NOT_COMPILED: Final = frozenset(
    {"prepare", "manage", "counters", "totals", "recent_alerts", "own_networks", "continue_flows"}
)
"""Methods that no handler calls: they stay Python, and the code that they use does not matter here."""


class CompiledHandlers(NamedTuple):
    """The compiled handlers of a network function for one core."""

    address: int
    context: npt.NDArray[np.int64]
    arrays: tuple[object, ...]
    """The arrays to which the context points."""


class _ContextBuilder:
    """The context in preparation, and the text that reads it."""

    def __init__(self) -> None:
        self.words: list[int] = []
        self.names: dict[str, object] = {}
        self.arrays: list[object] = []

    def read(self, value: object) -> str | None:
        """Return the text that reads a number or an array in compiled code; None for other values."""
        at = len(self.words)
        if isinstance(value, np.ndarray):
            if not value.flags.c_contiguous or value.dtype.hasobject or value.ndim == 0:
                return None
            self.arrays.append(value)
            self.words += [value.ctypes.data, *value.shape]
            kind = f"kind_{at}"
            self.names[kind] = value.dtype
            sides = "".join(f"words[{at + 1 + axis}], " for axis in range(value.ndim))
            return f"array_at(words[{at}], ({sides}), {kind})"
        if isinstance(value, bool | np.bool_):
            self.words.append(int(value))
            return f"(words[{at}] != 0)"
        if isinstance(value, int | np.integer):
            self.words.append(int(np.array(int(value)).astype(np.int64)))
            return f"words[{at}]"
        if isinstance(value, float | np.floating):
            self.words.append(int(np.array(float(value)).view(np.int64)))
            return f"floats[{at}]"
        return None


def compile_handlers(
    function: NetworkFunction, flows: Flows, connection: Packets, regular: Packets, now: npt.NDArray[np.int64]
) -> CompiledHandlers:
    """Compile the handlers of a prepared network function into one function for one core.

    ``connection`` and ``regular`` are the arrays in which a worker places batches, ``now`` (1,) has its time
    in seconds and replaces the time of ``flows``. Raises :class:`HandlerError` if handlers cannot be
    compiled.
    """
    if type(function).regular_packets is NetworkFunction.regular_packets:
        raise HandlerError(
            f"class {type(function).__name__} has no method regular_packets: write the handler for packets"
        )
    fields = _ContextBuilder()
    lines = ["def entry(context, what, count):", "    words = array_at(context, (SIZE,), WORD)"]
    lines.append("    floats = array_at(context, (SIZE,), FLOAT)")
    lines.append(f"    now = {fields.read(now)}")
    flow_fields = {name: fields.read(value) for name, value in zip(Flows._fields, flows, strict=True)}
    flow_fields["now"] = "now[0]"
    lines.append(f"    flows = Flows({', '.join(str(text) for text in flow_fields.values())})")
    seen = {name: text for name, value in _attributes(function) if (text := fields.read(value)) is not None}
    # Two fields of different types, so that Numba never treats the tuple as an array.
    seen |= {"dios_whole": "words[0]", "dios_broken": "floats[0]"}
    lines.append(f"    me = with_methods(Self({', '.join(seen.values())}))")
    if not function.stateless:
        lines += ["    if what == 2:", "        for _ in range(count):"]
        lines += ["            place = flows.look_for_expired()", "            if place >= 0:"]
        lines += ["                flow = flows.flow_at(place)"]
        lines += ["                if not me.expired_flow(flow, flows.copies[0], flows):"]
        lines += ["                    flows.remove_expired(flow)"]
        lines += ["    if what == 0:"]
        lines += [f"        me.connection_packets({fields.read(connection)}[:count], flows)"]
    lines += ["    if what == 1:", f"        me.regular_packets({fields.read(regular)}[:count], flows)"]
    lines += ["    flows.show()", "    return 0", ""]
    self_type = namedtuple(type(function).__name__, tuple(seen))  # type: ignore[misc] # noqa: PYI024 - made as it runs
    own = {
        name: method
        for name, method in _methods(type(function))
        if not name.startswith("_") and name not in _NOT_COMPILED
    }
    space = {
        # Cached code names the module that it belongs to.
        "__name__": __name__,
        "Flows": Flows,
        "Self": self_type,
        "with_methods": with_methods(self_type, own),
        "array_at": array_at,
        "SIZE": len(fields.words),
        "WORD": np.dtype(np.int64),
        "FLOAT": np.dtype(np.float64),
        **fields.names,
    }
    address = _address_of(function, "\n".join(lines), space, own)
    return CompiledHandlers(address, np.array(fields.words, np.int64), tuple(fields.arrays))


def _attributes(function: NetworkFunction) -> Iterator[tuple[str, object]]:
    names = sorted({name for kind in type(function).__mro__ for name in vars(kind)} | set(vars(function)))
    for name in names:
        if not name.startswith("_") and not callable(value := getattr(function, name)):
            yield name, value


def _methods(kind: type[NetworkFunction]) -> Iterator[tuple[str, Function]]:
    for name in sorted(dir(kind)):
        if inspect.isfunction(method := inspect.getattr_static(kind, name)):
            yield name, method


_known: Final[dict[str, int]] = {}
"""The addresses of functions that this process has compiled, so that each core does not load them again."""


def _address_of(
    function: NetworkFunction, text: str, space: dict[str, object], own: dict[str, Function]
) -> int:
    """Return the address of the compiled text."""
    kinds = [f"{name} {kind}" for name, kind in space.items() if name.startswith("kind_")]
    title = type(function).__name__
    name = name_of(title, own, (text, *kinds))
    if name in _known:
        return _known[name]
    exec(compile(text, f"<{title}>", "exec"), space)  # noqa: S102 - our own text
    try:
        address = callable_at(cast("KernelFunction", space["entry"]), name)
    except (NumbaError, UnsupportedBytecodeError, NotImplementedError) as error:
        raise HandlerError(_error_message(type(function), own, str(error))) from error
    except KeyError as error:
        # Numba reports a missing field of a record with a KeyError that has no place.
        raise HandlerError(_no_field(type(function), own, str(error.args[0]))) from error
    if name is not None:
        _known[name] = address
    return address


def _error_message(kind: type[NetworkFunction], own: dict[str, Function], message: str) -> str:
    """Return Numba's message, with the line of the handler first."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", message)
    files = {method.__code__.co_filename for method in own.values() if isinstance(method, FunctionType)}
    files.discard(inspect.getfile(NetworkFunction))
    place = f"class {kind.__name__}"
    for mention in re.finditer(r'(?:(?:at|from) (\S+) \((\d+)\)|File "([^"]+)", line (\d+))', plain):
        name, line = mention[1] or mention[3], mention[2] or mention[4]
        match = [path for path in files if Path(path).name == Path(name).name]
        if match:
            place = f"{match[0]}:{line}"
            break
    inner = plain.rfind("Failed in nopython mode pipeline")
    said = [line.strip() for line in plain[max(inner, 0) :].splitlines() if line.strip()]
    reason = said[1] if inner >= 0 and len(said) > 1 else said[0]
    reason = re.sub(r"Record\((\[.*?\], \d+, \w+|[^()]*)\)", "a record", reason)
    if "NRT required" in reason:
        reason = "it creates an array, a list or another object"
    unknown = re.search(r"name '(\w+)' is not defined", reason)
    if unknown:
        place = (
            _line_of(own, lambda does, argument, _: does == "LOAD_GLOBAL" and argument == unknown[1]) or place
        )
    if "for lowering" in reason:
        place, reason = (
            _changed(own) or place,
            "a number of self cannot be changed; use an element of an array",
        )
    return _sentence(place, reason)


def _no_field(kind: type[NetworkFunction], own: dict[str, Function], name: str) -> str:
    """Return the message for an unknown field of packets, flows or entries."""
    place = _line_of(own, lambda does, argument, _: does in {"LOAD_ATTR", "STORE_ATTR"} and argument == name)
    if place is None:
        # The field may be in a function that handlers call, or in code of Numba.
        return _sentence(f"class {kind.__name__}", f"{name!r} is unknown")
    return _sentence(place, f"neither packets nor entries have a field {name!r}")


def _sentence(place: str, reason: str) -> str:
    return (
        f"{place}: cannot compile this handler: {reason[:300]}\n"
        "Handlers use packets, flows, numbers, and arrays and numbers of self; they cannot create objects."
    )


def _changed(own: dict[str, Function]) -> str | None:
    """Return the place where a handler changes an attribute of ``self``."""
    return _line_of(own, lambda does, _, before: does == "STORE_ATTR" and before == "self")


def _line_of(own: dict[str, Function], wanted: Callable[[str, str, str], bool]) -> str | None:
    """Return file and line of the first instruction for which ``wanted`` is true.

    ``wanted`` is called with the operation, its argument, and ``self`` if the method's first argument was
    loaded before.
    """
    for method in own.values():
        code, before = method.__code__, ""
        for step in dis.get_instructions(code):
            if wanted(step.opname, str(step.argval), before):
                line = step.positions.lineno if step.positions else code.co_firstlineno
                return f"{code.co_filename}:{line}"
            before = "self" if code.co_varnames[:1] == (step.argval,) else ""
    return None

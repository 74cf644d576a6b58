"""Makes one compiled function of a network function's handlers, which workers call by its address.

Not for: the workers' own loop, which is compiled once for all functions (``worker_kernels.py``).

Attributes of ``self`` go in by way of an array of numbers, where arrays are addresses and sizes, and the
text of a small function that puts them together again is written for each class. What was compiled is kept
with that text in a folder of the user's, under a name that changes with all that it was made of.
"""

from __future__ import annotations

import contextlib
import dis
import hashlib
import inspect
import marshal
import os
import re
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Final, NamedTuple, cast

import numba
import numpy as np
import numpy.typing as npt
from numba.core.errors import NumbaError, UnsupportedBytecodeError

from dios.limits import SPRAYER_COMPILED_KEPT
from dios.sprayer.compile.intrinsics import Entry, array_at, callable_at
from dios.sprayer.compile.tuple_methods import Function, with_methods
from dios.sprayer.flows.flow_table import Flows
from dios.sprayer.network_function import HandlerError, NetworkFunction
from dios.sprayer.packets.packet import Packets

_PLAIN: Final = frozenset({"prepare", "manage", "counters", "totals"})
"""What no handler calls: it is Python, and what it uses changes nothing that is compiled."""


class Handler(NamedTuple):
    """What a worker needs of a network function."""

    address: int
    context: npt.NDArray[np.int64]
    kept: tuple[object, ...]
    """Arrays that the context points to."""


class _Fields:
    """The context being filled, and the text that reads it."""

    def __init__(self) -> None:
        self.words: list[int] = []
        self.names: dict[str, object] = {}
        self.kept: list[object] = []

    def read(self, value: object) -> str | None:
        """The text that gives a number or an array in compiled code; None for anything else."""
        at = len(self.words)
        if isinstance(value, np.ndarray):
            if not value.flags.c_contiguous or value.dtype.hasobject or value.ndim == 0:
                return None
            self.kept.append(value)
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
) -> Handler:
    """One compiled function of a prepared network function's handlers, for one core.

    ``connection`` and ``regular`` are where a worker puts batches, ``now`` (1,) its time in seconds; what
    ``flows`` says of it is not looked at. :class:`HandlerError` for handlers that cannot be compiled.
    """
    if type(function).regular_packets is NetworkFunction.regular_packets:
        raise HandlerError(
            f"class {type(function).__name__} has no regular_packets: write what they are to meet"
        )
    fields = _Fields()
    lines = ["def entry(context, what, count):", "    words = array_at(context, (SIZE,), WORD)"]
    lines.append("    floats = array_at(context, (SIZE,), FLOAT)")
    lines.append(f"    now = {fields.read(now)}")
    told = {name: fields.read(value) for name, value in zip(Flows._fields, flows, strict=True)}
    told["now"] = "now[0]"
    lines.append(f"    flows = Flows({', '.join(str(text) for text in told.values())})")
    seen = {name: text for name, value in _attributes(function) if (text := fields.read(value)) is not None}
    # Of different types, so that it is never what Numba keeps as an array.
    seen |= {"dios_whole": "words[0]", "dios_broken": "floats[0]"}
    lines.append(f"    me = with_methods(Self({', '.join(seen.values())}))")
    if not function.stateless:
        lines += ["    if what == 2:", "        for _ in range(count):"]
        lines += ["            place = flows.look_for_expired()", "            if place >= 0:"]
        lines += ["                flow = flows.flow_at(place)"]
        lines += ["                if me.expired_flow(flow, flows.copies[0], flows):"]
        lines += ["                    flows.keep(flow)", "                else:"]
        lines += ["                    flows.remove_local_flow(flow)"]
        lines += ["    if what == 0:"]
        lines += [f"        me.connection_packets({fields.read(connection)}[:count], flows)"]
    lines += ["    if what == 1:", f"        me.regular_packets({fields.read(regular)}[:count], flows)"]
    lines += ["    flows.show()", "    return 0", ""]
    made = namedtuple(type(function).__name__, tuple(seen))  # type: ignore[misc] # noqa: PYI024 - made as it runs
    own = {
        name: method
        for name, method in _methods(type(function))
        if not name.startswith("_") and name not in _PLAIN
    }
    space = {
        # What is kept on disk names the module that it belongs to.
        "__name__": __name__,
        "Flows": Flows,
        "Self": made,
        "with_methods": with_methods(made, own),
        "array_at": array_at,
        "SIZE": len(fields.words),
        "WORD": np.dtype(np.int64),
        "FLOAT": np.dtype(np.float64),
        **fields.names,
    }
    address = _Made.of(function, "\n".join(lines), space, own)
    return Handler(address, np.array(fields.words, np.int64), tuple(fields.kept))


def _attributes(function: NetworkFunction) -> Iterator[tuple[str, object]]:
    names = sorted({name for kind in type(function).__mro__ for name in vars(kind)} | set(vars(function)))
    for name in names:
        if not name.startswith("_") and not callable(value := getattr(function, name)):
            yield name, value


def _methods(kind: type[NetworkFunction]) -> Iterator[tuple[str, Function]]:
    for name in sorted(dir(kind)):
        if inspect.isfunction(found := inspect.getattr_static(kind, name)):
            yield name, found


class _Made:
    """Functions that this process compiled already, so that each core does not do so again."""

    known: Final[dict[str, int]] = {}

    @classmethod
    def of(
        cls,
        function: NetworkFunction,
        text: str,
        space: dict[str, object],
        own: dict[str, Function],
    ) -> int:
        """The address of what a text compiles to."""
        name = f"{type(function).__name__}_{_digest(text, space, own)}"
        found = cls.known.get(name)
        if found is None:
            path = _keep(name, text)
            exec(compile(text, str(path or f"<{name}>"), "exec"), space)  # noqa: S102 - our own text
            try:
                found = callable_at(cast("Entry", space["entry"]), keep=path is not None)
            except (NumbaError, UnsupportedBytecodeError, NotImplementedError) as error:
                raise HandlerError(_told(type(function), own, str(error))) from error
            except KeyError as error:
                # So says Numba of a field that a record does not have, and does not say where.
                raise HandlerError(_no_field(type(function), own, str(error.args[0]))) from error
            cls.known[name] = found
        return found


def _digest(text: str, space: dict[str, object], own: dict[str, Function]) -> str:
    """Changes whenever the compiled code may: with handlers, with what they use, with this library."""
    hasher = hashlib.blake2b(f"{numba.__version__} {np.__version__} {text}".encode(), digest_size=12)
    hasher.update(
        repr({name: str(kind) for name, kind in space.items() if name.startswith("kind_")}).encode()
    )
    here = Path(__file__).parent
    for path in (*sorted(here.glob("*.py")), here.parent / "limits.py", here.parent / "compiled.py"):
        hasher.update(path.read_bytes())
    seen: set[CodeType] = set()
    for name in sorted(own):
        _add(hasher, own[name], seen)
    return hasher.hexdigest()


def _add(hasher: hashlib.blake2b, function: object, seen: set[CodeType]) -> None:
    """Count a function in, and the globals that it names: functions, and numbers, which are compiled in."""
    plain = getattr(function, "py_func", function)
    if not isinstance(plain, FunctionType) or plain.__code__ in seen:
        return
    seen.add(plain.__code__)
    hasher.update(marshal.dumps(plain.__code__, 2))
    for name in plain.__code__.co_names:
        value = plain.__globals__.get(name)
        if isinstance(value, int | float | str | tuple | np.generic):
            hasher.update(f"{name}={value!r}".encode())
        elif isinstance(value, np.ndarray):
            hasher.update(value.tobytes())
        else:
            _add(hasher, value, seen)


def _keep(name: str, text: str) -> Path | None:
    """Write the text where what is compiled is kept beside it; None where nothing can be written."""
    home = os.environ.get("XDG_CACHE_HOME")
    try:
        folder = (Path(home) if home else Path.home() / ".cache") / "dios" / "functions"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}.py"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
        os.utime(path)
        older = sorted(folder.glob("*.py"), key=lambda each: each.stat().st_mtime_ns)
        for gone in older[:-SPRAYER_COMPILED_KEPT]:
            for kept in (gone, *folder.glob(f"__pycache__/{gone.stem}.*")):
                with contextlib.suppress(FileNotFoundError):
                    kept.unlink()
    except (OSError, RuntimeError):
        return None
    return path


def _told(kind: type[NetworkFunction], own: dict[str, Function], message: str) -> str:
    """What Numba says, with the line of the handler first."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", message)
    files = {method.__code__.co_filename for method in own.values() if isinstance(method, FunctionType)}
    files.discard(inspect.getfile(NetworkFunction))
    where = f"class {kind.__name__}"
    for found in re.finditer(r'(?:(?:at|from) (\S+) \((\d+)\)|File "([^"]+)", line (\d+))', plain):
        name, line = found[1] or found[3], found[2] or found[4]
        match = [path for path in files if Path(path).name == Path(name).name]
        if match:
            where = f"{match[0]}:{line}"
            break
    inner = plain.rfind("Failed in nopython mode pipeline")
    said = [line.strip() for line in plain[max(inner, 0) :].splitlines() if line.strip()]
    reason = said[1] if inner >= 0 and len(said) > 1 else said[0]
    reason = re.sub(r"Record\((\[.*?\], \d+, \w+|[^()]*)\)", "a record", reason)
    if "NRT required" in reason:
        reason = "it makes an array, a list or another object"
    unknown = re.search(r"name '(\w+)' is not defined", reason)
    if unknown:
        where = _line_of(own, lambda does, what, _: does == "LOAD_GLOBAL" and what == unknown[1]) or where
    if "for lowering" in reason:
        where, reason = (
            _changed(own) or where,
            "a number of self cannot be changed; use an element of an array",
        )
    return _sentence(where, reason)


def _no_field(kind: type[NetworkFunction], own: dict[str, Function], name: str) -> str:
    """What is said of a field of packets, flows or entries that there is not."""
    where = _line_of(own, lambda does, what, _: does in {"LOAD_ATTR", "STORE_ATTR"} and what == name)
    if where is None:
        # It may be a function that handlers call, or something of Numba's own.
        return _sentence(f"class {kind.__name__}", f"nothing is known of {name!r}")
    return _sentence(where, f"neither packets nor entries have a field {name!r}")


def _sentence(where: str, reason: str) -> str:
    return (
        f"{where}: this handler cannot be compiled: {reason[:300]}\n"
        "Handlers use packets, flows, numbers, and arrays and numbers of self; they make no objects."
    )


def _changed(own: dict[str, Function]) -> str | None:
    """The place where a handler changes an attribute of ``self``."""
    return _line_of(own, lambda does, _, before: does == "STORE_ATTR" and before == "self")


def _line_of(own: dict[str, Function], wanted: Callable[[str, str, str], bool]) -> str | None:
    """File and line of the first instruction that is wanted.

    By what it does, the name that it does it with, and ``self`` if the method's first argument stood before.
    """
    for method in own.values():
        code, before = method.__code__, ""
        for step in dis.get_instructions(code):
            if wanted(step.opname, str(step.argval), before):
                line = step.positions.lineno if step.positions else code.co_firstlineno
                return f"{code.co_filename}:{line}"
            before = "self" if code.co_varnames[:1] == (step.argval,) else ""
    return None

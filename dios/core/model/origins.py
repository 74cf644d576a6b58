"""The party that chose each field of an answer, and the rule by which others see it.

Every field of every answer and event is here, so that nobody is shown a new one before its rule was
decided: the import fails otherwise. ``docs/labels.md`` says how much the signals can carry.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from typing import Final, TypeAlias, get_args, get_type_hints

from msgspec import Struct

from dios.errors import InvariantError
from dios.wire import messages as m
from dios.wire import replies as r
from dios.wire.mandates import MandateTerms
from dios.wire.types import Resource


class Origin(enum.Enum):
    """The party that chose a field, and the rule by which others see it."""

    NODE = "by the node, from what is public or the reader's own"
    RULED = "by a task or user, in a call whose rule of labels considers its readers"
    HIDDEN = "by a task that may know a secret: replaced for readers who may not"
    SIGNAL = "by the node, from what such a task did: a hidden channel of bounded width"


Fields: TypeAlias = Mapping[Origin, str]

NODE, RULED, HIDDEN, SIGNAL = Origin

_ORIGINS: Final[dict[type[Struct], Fields]] = {
    # -- answers about objects
    m.Failure: {NODE: "code message fingerprint"},
    m.Done: {NODE: "value"},
    m.Created: {NODE: "name reference"},
    m.Reference: {
        NODE: "ref object type permissions persistence proximity deletion buffering slot fingerprint node"
        " rack address secrecy",
        RULED: "label expires_ns",
        HIDDEN: "size v_r v_w a_r a_w",
    },
    m.References: {SIGNAL: "references", NODE: "incomplete"},
    m.Buffer: {NODE: "buffer mapping start length secrecy", RULED: "data size", HIDDEN: "v_r v_w"},
    m.Committed: {HIDDEN: "v_r v_w"},
    m.Selected: {SIGNAL: "index"},
    m.Attached: {NODE: "ring_bytes"},
    m.Results: {NODE: "results"},
    # -- tasks
    m.Welcome: {
        NODE: "version name brand self_ref console groups home program devices traces mandate",
        RULED: "inputs outputs arguments executable label",
    },
    m.Tasks: {NODE: "tasks incomplete dead_only"},
    m.TaskRow: {
        NODE: "name fingerprint brand principal pid parent",
        SIGNAL: "state started_ns ended_ns cause node leave_ns secrecy",
        HIDDEN: "label exit_code signal detail moves restarts kept_bytes progress",
    },
    m.TaskDetail: {
        RULED: "status usage memory_limit_bytes cpu_limit_ms cpu_ms memory_bytes groups inputs outputs"
        " arguments executable repeatable processors devices time_ms",
    },
    m.HandedRow: {RULED: "fingerprint label type permissions", SIGNAL: "gone", HIDDEN: "size changed"},
    m.LimitRows: {NODE: "rows"},
    m.LimitRow: {NODE: "scope subject", SIGNAL: "secrecy", HIDDEN: "label used limits"},
    m.Delegated: {RULED: "reference", NODE: "sender"},
    m.ChildEnded: {NODE: "object status"},
    m.Lost: {SIGNAL: "count"},
    m.Retired: {NODE: "ref object fingerprint expired", RULED: "label"},
    # -- nodes
    m.Info: {NODE: "version node counts templates fitness capacities", RULED: "guarantees"},
    r.TemplateRow: {
        NODE: "name modules memory_bytes why",
        SIGNAL: "state used_bytes load_ms starts tasks prepared",
    },
    m.ResourceCapacity: {NODE: "resource bytes_s source detail"},
    m.Nodes: {NODE: "nodes version"},
    m.NodeRow: {
        NODE: "node name rack address status epoch since_ns cpus memory_bytes here clock fitness barred"
        " roles secret",
        RULED: "draining coordinated labels",
        SIGNAL: "tasks",
    },
    m.ClockReading: {NODE: "offset_ns error_ns"},
    m.Device: {NODE: "kind name files"},
    m.DeviceGrant: {NODE: "kind names files"},
    m.ThreadPlace: {NODE: "thread core cache numa socket"},
    m.TableRows: {NODE: "table columns rows following tables"},
    m.Enrolled: {NODE: "register cluster"},
    m.MandateWanted: {NODE: "terms"},
    MandateTerms: {NODE: "node node_key cluster principal keys now_ms end_ms"},
    # -- the scheduler
    m.QueueRows: {
        NODE: "version node name rack cpus memory_bytes slots waiting tasks partial whole gone tasks_listed"
        " disk_io network enforcement devices threads fitness kept limbo_from_nodes",
        RULED: "labels draining coordinated asked reports shares_version shares listed",
    },
    m.Submission: {
        NODE: "fingerprint principal pure",
        SIGNAL: "id waited_ms work node secrecy",
        HIDDEN: "label",
    },
    m.Work: {
        SIGNAL: "cpus_milli memory_bytes disk_io network priority deadline_ms interference service"
        " restartable job gang tasks affinity near constraints reservation pinned best_effort grace_ms"
        " devices threads job_minimum job_maximum time_ms",
        HIDDEN: "equivalence member copy_of moves restarts kept_bytes",
    },
    m.Near: {SIGNAL: "node bytes"},
    m.Constraint: {SIGNAL: "key operator value hard"},
    m.DeviceRequest: {SIGNAL: "kind count"},
    m.Occupant: {
        NODE: "id fingerprint principal pid devices processors",
        SIGNAL: "state age_ms work cpu_ms memory_bytes moving secrecy",
        HIDDEN: "label completed progress",
    },
    m.KeptRoom: {RULED: "submission node in_ms", SIGNAL: "waited_ms work secrecy"},
    m.Asked: {NODE: "number principal ruler", RULED: "question"},
    m.Placed: {NODE: "refused version"},
    m.Advice: {RULED: "answer"},
    # -- rates
    m.Metered: {NODE: "node meters capacity", RULED: "shares_version shares"},
    m.Meter: {NODE: "principal traffic task", SIGNAL: "moved waiting"},
}


def _shown() -> set[type[Struct]]:
    """Return the classes of all answers and events, those of their parts included."""
    shown: set[type[Struct]] = set()
    types: list[object] = [m.AnyResult, m.SelfEvent]
    while types:
        kind = types.pop()
        if not isinstance(kind, type) or get_args(kind):
            types += get_args(getattr(kind, "__value__", kind))
        elif issubclass(kind, Struct) and kind not in shown:
            shown.add(kind)
            types += get_type_hints(kind).values()
    return shown


def _complete(origins: Mapping[type[Struct], Fields]) -> dict[type[Struct], dict[str, Origin]]:
    """Return the origin of each field. Raise InvariantError unless each field of each answer has one."""
    table = {
        kind: [(field, origin) for origin, names in fields.items() for field in names.split()]
        for kind, fields in origins.items()
    }
    for kind in _shown() ^ table.keys():
        raise InvariantError(f"{kind.__name__} is shown and has no origins, or the reverse")
    for kind, fields in table.items():
        if sorted(field for field, _ in fields) != sorted(kind.__struct_fields__):
            raise InvariantError(f"each field of {kind.__name__} needs one origin")
    return {kind: dict(fields) for kind, fields in table.items()}


ORIGINS: Final = _complete(_ORIGINS)
"""The origin of each field of each answer and event, and of their parts."""


BLANKS: Final[dict[type[Struct], dict[str, object]]] = {
    m.TaskRow: {
        "label": "",
        "exit_code": 0,
        "signal": 0,
        "detail": "",
        "progress": None,
        "moves": 0,
        "restarts": 0,
        "kept_bytes": 0,
    },
    m.LimitRow: {"label": "", "used": (0,) * len(Resource), "limits": (None,) * len(Resource)},
    m.Submission: {"label": ""},
    m.Occupant: {"label": "", "progress": None, "completed": True},
    m.Work: {
        **dict.fromkeys(("equivalence", "member", "copy_of"), ""),
        **dict.fromkeys(("moves", "restarts", "kept_bytes"), 0),
    },
    m.KeptRoom: {},
    m.Reference: dict.fromkeys(("size", "v_r", "v_w", "a_r", "a_w"), 0),
    m.Buffer: {"v_r": 0, "v_w": 0},
    m.Committed: {"v_r": 0, "v_w": 0},
    m.HandedRow: {"size": 0, "changed": False},
}
"""The values of hidden fields for readers that may not know them."""


def require_all_hidden(replaced: Mapping[type[Struct], Collection[str]]) -> None:
    """Raise InvariantError unless exactly the hidden fields have values for those who may not see them."""
    for kind, fields in ORIGINS.items():
        hidden = {field for field, origin in fields.items() if origin is Origin.HIDDEN}
        if set(replaced.get(kind, ())) != hidden:
            raise InvariantError(f"the hidden fields of {kind.__name__} need values for other readers")


require_all_hidden(BLANKS)

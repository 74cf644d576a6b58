"""The commands that ask a cluster's coordinator: ``dios explain`` and most of ``dios sched``.

Every node passes the question on to the coordinator (``dios.firmament.coordinator.query_handler``), so no
numeric code is loaded here.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Final, TypedDict

import typer

from dios.cli.common.context import CommandContext, opened, tasks_called
from dios.cli.common.extras import missing_extra
from dios.cli.common.output import (
    JsonOption,
    NodeOption,
    facts,
    reporting,
    say,
    size_text,
    table,
    write_file,
    write_json,
    write_line,
)
from dios.cli.scheduling import start_queues
from dios.client.plain_text import plain_lines
from dios.errors import ExistsError, InvalidError, UnreachableError
from dios.firmament.custom_model.source import SUFFIX, read_source
from dios.web.report.decision import decision_page

STATUS: Final = "\b\nFor example:\n  dios sched status\n  dios sched status --json"
MODELS: Final = "\b\nFor example:\n  dios sched models"
SET_MODEL: Final = (
    "\b\nFor example:\n  dios sched set-model coco\n  dios sched set-model spread near=8000 load=500\n"
    "  dios sched set-model ./mine.py weight=3      (your own; try it with `dios sched check-model` first)"
)
CHECK_MODEL: Final = (
    "\b\nFor example:\n  dios sched check-model ./mine.py\n  dios sched check-model ./mine.py weight=3"
)
SETTINGS: Final = "\b\nFor example:\n  dios sched settings\n  dios sched settings --json"
SET: Final = (
    "\b\nFor example:\n  dios sched set preemption=false\n"
    "  dios sched set solver=network_simplex migration_hysteresis=500\n"
    "  dios sched settings               (all of them, with their values)"
)
RESET: Final = "\b\nFor example:\n  dios sched reset"
HISTORY: Final = "\b\nFor example:\n  dios sched history\n  dios sched history --json"
EXPORT: Final = (
    "\b\nFor example:\n  dios sched export --dimacs network.dimacs   (then: dios lab solve network.dimacs)\n"
    "  dios sched export --dot - | dot -Tsvg > network.svg"
)
EXPLAIN: Final = (
    "\b\nFor example:\n  dios explain job.py\n  dios explain 3f9a --json\n"
    "  dios explain 3f9a --picture why.html"
)

_MS: Final = 1000


class CheckedModelRow(TypedDict):
    """A cost model that keeps the contract, with the defaults of its parameters."""

    model: str
    summary: str
    parameters: dict[str, str]


class NetworkRow(TypedDict):
    """A flow network as text, in the format dimacs or dot."""

    format: str
    text: str


def ask(node: str | None, question: dict[str, object]) -> dict[str, object]:
    """Ask the coordinator and return its answer.

    Raises ``InvalidError`` with the coordinator's own message if it refuses.
    """
    with opened(node) as place:
        return ask_at(place, question)


def ask_at(place: CommandContext, question: dict[str, object]) -> dict[str, object]:
    """Ask the coordinator through an open connection, like :func:`ask`."""
    try:
        answer = json.loads(place.node.ask_scheduler(json.dumps(question).encode()))
    except UnreachableError as error:
        missing = missing_extra("cluster")
        if not missing:
            raise
        advice = f"{missing}; then `dios-node restart`"
        raise UnreachableError(f"{error.message} {advice}", call=error.call) from None
    if not isinstance(answer, dict) or not answer.pop("ok", False):
        told = answer.get("error") if isinstance(answer, dict) else None
        raise InvalidError(str(told or "the coordinator's answer is malformed; is it of another version?"))
    return answer


def status(node: NodeOption = None, *, as_json: JsonOption = False) -> None:
    """Show the coordinator, its cost model, the resources set aside on each node, and recent problems."""
    with reporting("dios sched status", as_json=as_json):
        answer = ask(node, {"ask": "status"})
        if as_json:
            write_json(answer)
            return
        facts(
            [
                ("coordinator", f"{answer['coordinator']} ({answer['set_up']})"),
                ("model", str(answer["model"])),
                ("placed by", _placed_by(answer)),
                ("tasks", f"{answer['running']} run, {answer['waiting']} wait"),
                ("rounds", _last_round(answer)),
                ("measured", _measured(answer)),
            ]
        )
        rows = [
            (
                str(row["node"]),
                str(row["rack"] or "-"),
                str(row["running"]),
                f"{row['cpus_set_aside']:g} of {row['cpus']}",
                f"{_size(row['memory_set_aside'])} of {_size(row['memory_bytes'])}",
                ("draining" if row["draining"] else "") + ("" if row["coordinator"] else " no coordinator"),
            )
            for row in rows_of(answer, "nodes")
        ]
        table(("NODE", "RACK", "TASKS", "CPUS SET ASIDE", "MEMORY SET ASIDE", ""), rows, right=("TASKS",))
        for problem in _texts(answer, "problems"):
            say(f"problem: {problem}")


def models(node: NodeOption = None, *, as_json: JsonOption = False) -> None:
    """List the cost models, and mark the model in use."""
    with reporting("dios sched models", as_json=as_json):
        answer = ask(node, {"ask": "models"})
        if as_json:
            write_json(answer)
            return
        rows = [
            (
                "*" if row["model"] == answer["current"] else "",
                str(row["model"]),
                " ".join(_texts(row, "considers")) or "-",
                str(row["summary"]),
            )
            for row in rows_of(answer, "models")
        ]
        table(("", "MODEL", "CONSIDERS", "WHAT IT DOES"), rows)


def set_model(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE.py",
            help="A name that `dios sched models` lists, or a file with your own model.",
        ),
    ],
    parameters: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PARAMETER=VALUE]...", help="Parameters of the model; default: those of the model."
        ),
    ] = None,
    node: NodeOption = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Schedule the cluster by another cost model from now on.

    The choice outlives coordinators and nodes, until `dios sched reset`. Running tasks are judged by the new
    model too, so they may be moved. Your own model is checked first, and runs in a task that can reach
    nothing. If it fails later, the model of the nodes' settings takes its place (docs/cost-models.md).
    """
    with reporting("dios sched set-model", as_json=as_json):
        question: dict[str, object] = {"ask": "set-model", "parameters": _words(parameters or ())}
        is_file = name.endswith(SUFFIX)
        question |= {"model": Path(name).stem, "source": read_source(name)} if is_file else {"model": name}
        answer = ask(node, question)
        if as_json:
            write_json(answer)
        else:
            say(f"the cluster is now scheduled by {answer['model']}; before, it was {answer['before']}")


def check_model(
    file: Annotated[Path, typer.Argument(metavar="FILE.py", help="A file with your own cost model.")],
    parameters: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PARAMETER=VALUE]...", help="Parameters of the model; default: its own."),
    ] = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Check your own cost model on random clusters, here and without a node.

    The file is executed by this command, with your rights. `dios sched set-model` makes the same check in a
    task that can reach nothing.
    """
    with reporting("dios sched check-model", as_json=as_json):
        source = read_source(str(file))
        # Late, because it loads NumPy.
        from dios.firmament.custom_model import contract  # noqa: PLC0415 - see above
        from dios.firmament.custom_model.loading import ModelFile  # noqa: PLC0415 - see above
        from dios.firmament.parameters import text_of  # noqa: PLC0415 - see above

        model = ModelFile(source)
        given = _words(parameters or ())
        contract.check(lambda: model.make(given))
        usual = {name: text_of(value) for name, value in model.parameters.items()}
        if as_json:
            row: CheckedModelRow = {"model": model.name, "summary": model.summary, "parameters": usual}
            write_json(row)
            return
        say(f"{model.name} keeps the contract of cost models: {model.summary or 'it has no summary'}")
        table(("PARAMETER", "DEFAULT"), list(usual.items()))


def settings(node: NodeOption = None, *, as_json: JsonOption = False) -> None:
    """Show the cost model, its parameters and the scheduler's settings, and where each value comes from."""
    with reporting("dios sched settings", as_json=as_json):
        _show_settings(ask(node, {"ask": "settings"}), as_json=as_json)


def set_settings(
    words: Annotated[
        list[str],
        typer.Argument(metavar="SETTING=VALUE...", help="Settings that `dios sched settings` lists."),
    ],
    node: NodeOption = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Change settings of the scheduler from now on: the solver, preemption, migration, bounds, delays.

    The choice outlives coordinators and nodes, until `dios sched reset`. docs/scheduling.md explains each.
    """
    with reporting("dios sched set", as_json=as_json):
        _show_settings(ask(node, {"ask": "set", "settings": _words(words)}), as_json=as_json)


def reset(node: NodeOption = None, *, as_json: JsonOption = False) -> None:
    """Return to the cost model of the nodes' settings, and to the defaults of all others."""
    with reporting("dios sched reset", as_json=as_json):
        _show_settings(ask(node, {"ask": "reset"}), as_json=as_json)


def _words(given: Iterable[str]) -> dict[str, str]:
    """Return NAME=VALUE words by name; raise InvalidError for any other word, and for a name given twice."""
    words: dict[str, str] = {}
    for word in given:
        name, equals, value = word.partition("=")
        if not (name and equals and value):
            raise InvalidError(f"{word!r} is not written as NAME=VALUE")
        if name in words:
            raise InvalidError(f"{name} is given twice")
        words[name] = value
    return words


def _show_settings(answer: dict[str, object], *, as_json: bool) -> None:
    if as_json:
        write_json(answer)
        return
    rows = [
        tuple(str(row[key]) for key in ("setting", "value", "default", "from"))
        for row in rows_of(answer, "settings")
    ]
    table(("SETTING", "VALUE", "DEFAULT", "FROM"), rows)


def history(node: NodeOption = None, *, as_json: JsonOption = False) -> None:
    """Show the last rounds: changes, cost, duration, and the solver that answered first."""
    with reporting("dios sched history", as_json=as_json):
        answer = ask(node, {"ask": "history"})
        if as_json:
            write_json(answer)
            return
        rows = [
            (
                str(row["number"]),
                str(row["model"]),
                str(row["algorithm"]),
                _changes(row),
                str(row["waiting"]),
                str(row["running"]),
                f"{float(str(row['solve_s'])) * _MS:.1f}",
                f"{float(str(row['total_s'])) * _MS:.1f}",
                "; ".join(_texts(row, "faults")) or ("" if row["stands"] else "the last schedule stands"),
            )
            for row in rows_of(answer, "rounds")
        ]
        head = ("ROUND", "MODEL", "SOLVER", "CHANGES", "WAIT", "RUN", "SOLVE MS", "ALL MS", "FAULTS")
        table(head, rows, right=("ROUND", "WAIT", "RUN", "SOLVE MS", "ALL MS"))


def export(
    *,
    dimacs: Annotated[
        str,
        typer.Option(
            "--dimacs", metavar="FILE", help="Write the network as DIMACS; - is the standard output."
        ),
    ] = "",
    dot: Annotated[
        str, typer.Option("--dot", metavar="FILE", help="Write the network as a graph for Graphviz.")
    ] = "",
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the flow network of the next round, to look at or to solve with another program."""
    with reporting("dios sched export", as_json=as_json):
        if bool(dimacs) == bool(dot):
            raise InvalidError("give --dimacs FILE or --dot FILE; - as FILE is the standard output")
        answer = ask(node, {"ask": "export", "as": "dot" if dot else "dimacs"})
        text, path = str(answer["text"]), dimacs or dot
        if as_json:
            row: NetworkRow = {"format": "dot" if dot else "dimacs", "text": text}
            write_json(row)
        elif path == "-":
            sys.stdout.write(plain_lines(text))
        else:
            write_file(Path(path), text)
            say(f"written: {path}")


def explain(
    task: Annotated[
        str,
        typer.Argument(
            metavar="TASK", help="The start of a fingerprint, or a title. The task may be waiting."
        ),
    ],
    node: NodeOption = None,
    *,
    picture: Annotated[
        Path | None,
        typer.Option(
            "--picture", metavar="FILE", help="Write a page that shows the decision: one file of HTML."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a picture that exists.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Explain why a task waits, or why it runs where it is, from the scheduler's current network.

    Of a run in a node's start queue it shows the place there and the reason, and of a kept job that waits for
    other runs it names these; that needs no scheduler.

    Shows the path of the task's unit of flow with the cost of each arc, the more expensive alternatives, the
    arc that limits it, the reasons that exclude other nodes, and what nodes have free. For a run that waits,
    the scheduler tries which changes would start it: smaller needs, no constraint, the next ends of tasks.
    With --picture the same is a page without scripts, which needs no network and can be sent to others.
    """
    with reporting("dios explain", as_json=as_json):
        if picture is not None and picture.exists() and not force:
            raise ExistsError(f"cannot write {picture}: it exists. Add --force, or choose another file.")
        with opened(node) as place:
            tasks = place.node.tasks()
            living = [candidate.fingerprint for candidate in tasks_called(tasks, task) if not candidate.ended]
            word = living[0] if len(living) == 1 else task
            explained: Mapping[str, object] = (
                start_queues.explanation(tasks, word)
                or start_queues.explanation_of_job(place, task)
                or ask_at(place, {"ask": "explain", "task": word})
            )
        if picture is not None:
            read = next(
                (candidate.secrecy for candidate in tasks if candidate.fingerprint == explained.get("task")),
                (),
            )
            page = decision_page(explained, time.time_ns(), read)
            write_file(picture, page, is_new=not force)
        if as_json:
            write_json(explained)
            return
        for line in _texts(explained, "lines"):
            write_line(line)
        if picture is not None:
            say(f"written: {picture}")


def rows_of(answer: dict[str, object], key: str) -> list[dict[str, object]]:
    """Return the rows that an answer has under a key."""
    rows = answer.get(key)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _texts(answer: Mapping[str, object], key: str) -> list[str]:
    texts = answer.get(key)
    return [str(text) for text in texts] if isinstance(texts, list) else []


def _placed_by(answer: dict[str, object]) -> str:
    kernels = answer.get("kernels")
    if answer.get("placed_by") != "first-fit" or not isinstance(kernels, dict):
        return "the flow scheduler"
    compiled, total = kernels.get("compiled"), kernels.get("total")
    number = f" ({compiled} of {total})" if total else ""
    text = (
        f"a simple rule, while the scheduler's kernels are being compiled{number}: each run goes to the "
        "least loaded node that satisfies its needs"
    )
    problem = kernels.get("problem")
    return f"{text}; the last attempt failed: {problem}" if problem else text


def _measured(answer: dict[str, object]) -> str:
    missing = answer.get("unmeasured")
    if not isinstance(missing, dict) or not missing:
        return "all of a task's counters (Table 6.4 of the thesis)"
    return f"all of a task's counters but the {len(missing)} that this machine lacks (--json lists them)"


def _size(value: object) -> str:
    return size_text(int(str(value)))


def _last_round(answer: dict[str, object]) -> str:
    last = answer.get("last_round")
    if not isinstance(last, dict):
        return "none yet"
    return (
        f"{answer['rounds']}; the last took {float(str(last['total_s'])) * _MS:.1f} ms ({last['algorithm']})"
    )


def _changes(row: dict[str, object]) -> str:
    kinds = row.get("kinds")
    counts = kinds.items() if isinstance(kinds, dict) else ()
    return ", ".join(f"{count} {kind}" for kind, count in counts) or "-"

"""The commands that ask a cluster's coordinator: ``dios explain`` and most of ``dios sched``.

Every node passes the question on to the coordinator (``dios.firmament.coordinator.query_handler``), so no
numeric code is loaded here.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from dios.cli.common.application import CommandApplication
from dios.cli.common.context import CommandContext, opened, tasks_called
from dios.cli.common.extras import missing_extra
from dios.cli.common.options import argument, option
from dios.cli.common.output import (
    Cells,
    Number,
    say,
    size_text,
    write_file,
    write_json,
    write_line,
)
from dios.cli.common.results import CommonOptions, OutputOptions
from dios.cli.common.rows import Row
from dios.cli.scheduling import start_queues
from dios.client.plain_text import plain_lines
from dios.errors import ExistsError, InvalidError, UnreachableError
from dios.firmament.custom_model.source import SUFFIX, read_source
from dios.web.report.decision import decision_page

if TYPE_CHECKING:
    from dios.firmament.coordinator import answers

app: Final = CommandApplication(no_args_is_help=True, help="The cluster scheduler, Firmament.")
explain_app: Final = CommandApplication()

PARAMETERS_ARGUMENT: Final[list[str] | None] = argument(
    "[PARAMETER=VALUE]...", "Parameters of the model; default: those of the model."
)
_ANSWERS: Final = "dios.firmament.coordinator.answers"
_MS: Final = 1000


class CheckedModelRow(Row):
    """A cost model that keeps the contract, with the defaults of its parameters."""

    model: str
    summary: str
    parameters: dict[str, str]


class NetworkRow(Row):
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


@app.command(examples="dios sched status\ndios sched status --json", json=f"{_ANSWERS}:StatusAnswer")
def status(common: CommonOptions) -> None:
    """Show the coordinator, its cost model, the resources set aside on each node, and recent problems."""
    answer = cast("answers.StatusAnswer", ask(common.node, {"ask": "status"}))
    common.print_row(
        answer,
        *(f"problem: {problem}" for problem in answer["problems"]),
        facts={
            "coordinator": f"{answer['coordinator']} ({answer['set_up']})",
            "model": answer["model"],
            "placed by": _placed_by(answer),
            "tasks": f"{answer['running']} run, {answer['waiting']} wait",
            "rounds": _last_round(answer),
            "measured": _measured(answer["unmeasured"]),
        },
        table=map(_node_cells, answer["nodes"]),
    )


def _node_cells(node: answers.NodeAnswer) -> Cells:
    memory = size_text(node["memory_set_aside"])
    return {
        "NODE": node["node"],
        "RACK": node["rack"] or None,
        "TASKS": node["running"],
        "CPUS SET ASIDE": f"{node['cpus_set_aside']:g} of {node['cpus']}",
        "MEMORY SET ASIDE": f"{memory} of {size_text(node['memory_bytes'])}",
        "": ("draining" if node["draining"] else "") + ("" if node["coordinator"] else " no coordinator"),
    }


@app.command(examples="dios sched models", json=f"{_ANSWERS}:ModelsAnswer")
def models(common: CommonOptions) -> None:
    """List the cost models, and mark the model in use."""
    answer = cast("answers.ModelsAnswer", ask(common.node, {"ask": "models"}))
    lines: Iterator[Cells] = (
        {
            "": "*" if row["model"] == answer["current"] else "",
            "MODEL": row["model"],
            "CONSIDERS": " ".join(row["considers"]) or None,
            "WHAT IT DOES": row["summary"],
        }
        for row in answer["models"]
    )
    common.print_row(answer, table=lines)


@app.command(
    examples="dios sched set-model coco\ndios sched set-model spread near=8000 load=500\n"
    "dios sched set-model ./mine.py weight=3      (your own; try it with `dios sched check-model` first)",
    json=f"{_ANSWERS}:ModelChangeAnswer",
)
def set_model(
    name: str = argument(
        "NAME|FILE.py", "A name that `dios sched models` lists, or a file with your own model."
    ),
    parameters: list[str] | None = PARAMETERS_ARGUMENT,
    *,
    common: CommonOptions,
) -> None:
    """Schedule the cluster by another cost model from now on.

    The choice outlives coordinators and nodes, until `dios sched reset`. Running tasks are judged by the new
    model too, so they may be moved. Your own model is checked first, and runs in a task that can reach
    nothing. If it fails later, the model of the nodes' settings takes its place (docs/cost-models.md).
    """
    question: dict[str, object] = {"ask": "set-model", "parameters": _words(parameters or ())}
    is_file = name.endswith(SUFFIX)
    question |= {"model": Path(name).stem, "source": read_source(name)} if is_file else {"model": name}
    answer = cast("answers.ModelChangeAnswer", ask(common.node, question))
    common.print_row(
        answer,
        f"the cluster is now scheduled by {answer['model']}; before, it was {answer['before']}",
    )


@app.command(
    examples="dios sched check-model ./mine.py\ndios sched check-model ./mine.py weight=3",
    json=CheckedModelRow,
)
def check_model(
    file: Path = argument("FILE.py", "A file with your own cost model."),
    parameters: list[str] | None = PARAMETERS_ARGUMENT,
    *,
    output: OutputOptions,
) -> None:
    """Check your own cost model on random clusters, here and without a node.

    The file is executed by this command, with your rights. `dios sched set-model` makes the same check in a
    task that can reach nothing.
    """
    source = read_source(str(file))
    # Late, because it loads NumPy.
    from dios.firmament.custom_model import contract  # noqa: PLC0415 - see above
    from dios.firmament.custom_model.loading import ModelFile  # noqa: PLC0415 - see above
    from dios.firmament.parameters import text_of  # noqa: PLC0415 - see above

    model = ModelFile(source)
    given = _words(parameters or ())
    contract.check(lambda: model.make(given))
    usual = {name: text_of(value) for name, value in model.parameters.items()}
    output.print_row(
        CheckedModelRow(model.name, model.summary, usual),
        f"{model.name} keeps the contract of cost models: {model.summary or 'it has no summary'}",
        table=({"PARAMETER": name, "DEFAULT": value} for name, value in usual.items()),
    )


@app.command(examples="dios sched settings\ndios sched settings --json", json=f"{_ANSWERS}:SettingsAnswer")
def settings(common: CommonOptions) -> None:
    """Show the cost model, its parameters and the scheduler's settings, and where each value comes from."""
    _show_settings(common, {"ask": "settings"})


@app.command(
    "set",
    examples="dios sched set preemption=false\n"
    "dios sched set solver=network_simplex migration_hysteresis=500\n"
    "dios sched settings               (all of them, with their values)",
    json=f"{_ANSWERS}:SettingsAnswer",
)
def set_settings(
    words: list[str] = argument("SETTING=VALUE...", "Settings that `dios sched settings` lists."),
    *,
    common: CommonOptions,
) -> None:
    """Change settings of the scheduler from now on: the solver, preemption, migration, bounds, delays.

    The choice outlives coordinators and nodes, until `dios sched reset`. docs/scheduling.md explains each.
    """
    _show_settings(common, {"ask": "set", "settings": _words(words)})


@app.command(examples="dios sched reset", json=f"{_ANSWERS}:SettingsAnswer")
def reset(common: CommonOptions) -> None:
    """Return to the cost model of the nodes' settings, and to the defaults of all others."""
    _show_settings(common, {"ask": "reset"})


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


def _show_settings(common: CommonOptions, question: dict[str, object]) -> None:
    answer = cast("answers.SettingsAnswer", ask(common.node, question))
    lines: Iterator[Cells] = (
        {name.upper(): str(value) for name, value in row.items()} for row in answer["settings"]
    )
    common.print_row(answer, table=lines)


@app.command(examples="dios sched history\ndios sched history --json", json=f"{_ANSWERS}:HistoryAnswer")
def history(common: CommonOptions) -> None:
    """Show the last rounds: changes, cost, duration, and the solver used."""
    answer = cast("answers.HistoryAnswer", ask(common.node, {"ask": "history"}))
    lines: Iterator[Cells] = (
        {
            "ROUND": row["number"],
            "MODEL": row["model"],
            "SOLVER": row["algorithm"],
            "CHANGES": ", ".join(f"{count} {kind}" for kind, count in row["kinds"].items()) or None,
            "WAIT": row["waiting"],
            "RUN": row["running"],
            "SOLVE MS": Number(f"{row['solve_s'] * _MS:.1f}"),
            "ALL MS": Number(f"{row['total_s'] * _MS:.1f}"),
            "FAULTS": "; ".join(row["faults"]) or ("" if row["stands"] else "the last schedule stands"),
        }
        for row in answer["rounds"]
    )
    common.print_row(answer, table=lines)


@app.command(
    examples="dios sched export --dimacs network.dimacs   (then: dios lab solve network.dimacs)\n"
    "dios sched export --dot - | dot -Tsvg > network.svg",
    json=NetworkRow,
)
def export(
    *,
    dimacs: str = option("--dimacs FILE", "Write the network as DIMACS; - is the standard output."),
    dot: str = option("--dot FILE", "Write the network as a graph for Graphviz."),
    common: CommonOptions,
) -> None:
    """Write the flow network of the next round, to look at or to solve with another program."""
    if bool(dimacs) == bool(dot):
        raise InvalidError("give --dimacs FILE or --dot FILE; - as FILE is the standard output")
    kind = "dot" if dot else "dimacs"
    text, path = str(ask(common.node, {"ask": "export", "as": kind})["text"]), dimacs or dot
    if common.as_json:
        write_json(NetworkRow(kind, text))
    elif path == "-":
        sys.stdout.write(plain_lines(text))
    else:
        write_file(Path(path), text)
        say(f"written: {path}")


@explain_app.command(
    examples="dios explain job.py\ndios explain 3f9a --json\ndios explain 3f9a --picture why.html",
    json=(f"{_ANSWERS}:ExplainedAnswer", start_queues.QueuedRow),
)
def explain(
    task: str = argument("TASK", "The start of a fingerprint, or a title. The task may be waiting."),
    *,
    picture: Path | None = option(
        "--picture FILE", "Write a page that shows the decision: one file of HTML."
    ),
    force: bool = option("--force", "Write over a picture that exists."),
    common: CommonOptions,
) -> None:
    """Explain why a task waits, or why it runs where it is, from the scheduler's current network.

    Of a run in a node's start queue it shows the place there and the reason, and of a kept job that waits for
    other runs it names these; that needs no scheduler.

    Shows the path of the task's unit of flow with the cost of each arc, the more expensive alternatives, the
    arc that limits it, the reasons that exclude other nodes, and what nodes have free. For a run that waits,
    the scheduler tries which changes would start it: smaller needs, no constraint, the next ends of tasks.
    With --picture the same is a page without scripts, which needs no network and can be sent to others.
    """
    if picture is not None and picture.exists() and not force:
        raise ExistsError(f"cannot write {picture}: it exists. Add --force, or choose another file.")
    with opened(common.node) as place:
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
    if common.as_json:
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


def _placed_by(answer: answers.SchedulerAnswer) -> str:
    if answer["placed_by"] != "first-fit":
        return "the flow scheduler"
    kernels = answer["kernels"]
    number = f" ({kernels.get('compiled')} of {kernels['total']})" if kernels.get("total") else ""
    text = (
        f"a simple rule, while the scheduler's kernels are being compiled{number}: each run goes to the "
        "least loaded node that satisfies its needs"
    )
    problem = kernels.get("problem")
    return f"{text}; the last attempt failed: {problem}" if problem else text


def _measured(missing: Mapping[str, str]) -> str:
    if not missing:
        return "all of a task's counters (Table 6.4 of the thesis)"
    return f"all of a task's counters but the {len(missing)} that this machine lacks (--json lists them)"


def _last_round(answer: answers.SchedulerAnswer) -> str:
    last = answer["last_round"]
    if last is None:
        return "none yet"
    return f"{answer['rounds']}; the last took {last['total_s'] * _MS:.1f} ms ({last['algorithm']})"

"""The escape suite in other places than a task: sessions, their forks, after a reset, and templates.

The attempts and the answers to them are those of ``test_escape_*``; this says where a place differs. Attempts
by calls to the node (``test_escape_names``, ``_references``, ``_buffers``) are made in these places by their
files; the process of a template has no connection to a node.
"""

from __future__ import annotations

import importlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

import dios
from dios import limits
from dios.host.confinement.mechanisms import Mechanism
from dios.host.confinement.notifications import FORKS
from dios.host.process.template_setting import TemplateSetting
from dios.wire.messages import Limits
from dios.wire.types import Brand
from tests.security.test_escape_resources import Greed
from tests.support.node.confinement import attempt, mechanisms_or_skip, pool_with_templates
from tests.support.security.escape import SUPPORT, Attempt, Cage, Witness, open_cage

ORDINARY = ("network", "files", "processes", "kernel")
SUITES = (*ORDINARY, "resources")
"""After an attempt of the last one the session has nothing left for another, so each has a fresh one."""
PATIENCE_S = 60.0
TEMPLATE = "caged"
MEMORY = limits.TASK_MEMORY_BYTES_MIN
TASKS = 24
TEMPLATE_MEMORY = 256 * limits.MIB
"""As many as ``test_escape_resources`` has, so that a bomb of tasks is over soon."""

LOAD = """
import sys, types
def load(name, source):
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
    return module
"""
"""The programs of the suite as modules of a session."""


def rows_of(suite: str) -> list[Attempt]:
    """Return the attempts of one file of the suite; the causes of ends count as answers."""
    return [
        Attempt(
            escape.name,
            escape.claim,
            (*escape.answers, *(cause.name for cause in escape.causes)),
            is_greed=True,
        )
        if isinstance(escape, Greed)
        else escape
        for escape in importlib.import_module(f"tests.security.test_escape_{suite}").ALL
    ]


def program_of(suite: str) -> str:
    """Return the code of a cell that loads the attempts of one file of the suite."""
    names = ("escape_tools", f"escape_{suite}")
    loads = (f"load({name!r}, {(SUPPORT / f'{name}.py').read_text()!r})" for name in names)
    return "\n".join([LOAD, *loads, "import escape_tools"])


@pytest.fixture(params=SUITES)
def suite(request: pytest.FixtureRequest) -> str:
    """The name of one file of the suite."""
    return str(request.param)


@pytest.fixture
def cage(suite: str, tmp_path: Path) -> Iterator[Cage]:
    """A node with a template, a neighbour and the witnesses."""
    with open_cage(
        tmp_path,
        f"escape_{suite}",
        template=TEMPLATE,
        templates=f"{TEMPLATE}=colorsys",
        tasks_max=str(TASKS),
    ) as opened:
        yield opened


def answer_in(box: dios.Sandbox, cage: Cage, row: Attempt) -> str:
    """Make an attempt in a session; return the answer, or SIGSYS if it ended the session."""
    result = box.run(f"sys.argv[1:] = [{cage.loot!r}, {row.name!r}]\nescape_tools.run({cage.module!r})")
    if result.error is None:
        return result.stdout.strip()
    return ending(f"{result.error.type}: {result.error.message}")


ENDS = {
    "the sandbox ended it": "SIGSYS",
    "SIGKILL ended it": "KILLED",
    "it needed more memory than memory= allows": "MEMORY",
    "a frame of": "PROTOCOL",
    "malformed request": "PROTOCOL",
    "a peer that does not read": "PROTOCOL",
    "SIGSEGV ended it": "SIGNAL",
    "processes needed more than": "MEMORY",
    "its process closed its link": "GONE",
}
"""Texts in reasons of ends, and words for them."""


def ending(reason: str) -> str:
    """Return a word for the end of a process if the reason has one, otherwise the reason."""
    return next((word for text, word in ENDS.items() if text in reason), reason)


def check(cage: Cage, wrong: dict[str, str], row: Attempt, answer: str, different: dict[str, str]) -> None:
    """Note an answer that is none of the row's, and fail if anybody else was touched."""
    accepted = {*row.answers, different.get(row.name, "")}
    if answer not in accepted and answer.partition(":")[0] not in accepted:
        wrong[row.name] = answer
    cage.neighbour.is_answered()
    cage.witness.unharmed()


IN_SESSIONS = {
    # Its own: those of its streams. ``test_sandbox`` and the supervisor of forks look at the others.
    "inherited_descriptors": "did",
}
"""Attempts with another answer in a session than in a task that does nothing else."""

IN_FORKS = {
    # To itself alone: what it can read there is what it can read anyway.
    "change_directory": "did",
    # It reaches itself alone, see ``test_forked_sessions``.
    "kill_group": "KILLED",
}
"""Attempts with another answer in a session that can be forked, and in its forks."""


@pytest.mark.extended(keep=1)
@pytest.mark.parametrize("suite", ORDINARY, indirect=True)
def test_no_attempt_gets_out_of_a_session(cage: Cage, suite: str) -> None:
    """One session makes them one after the other; one that ends it costs that session alone."""
    wrong: dict[str, str] = {}
    with dios.Sandbox(node=cage.node, memory=MEMORY, timeout=PATIENCE_S) as box:
        assert box.run(program_of(suite)).ok
        for row in rows_of(suite):
            check(cage, wrong, row, answer_in(box, cage, row), IN_SESSIONS)
            if box.ended:
                box.reset()
                assert box.run(program_of(suite)).ok
    assert not wrong


@pytest.mark.extended(keep=1)
def test_no_attempt_gets_out_after_a_reset(cage: Cage, suite: str) -> None:
    """The session of a template is reset before each attempt."""
    wrong: dict[str, str] = {}
    with dios.Sandbox(node=cage.node, template=TEMPLATE, memory=MEMORY, timeout=PATIENCE_S) as box:
        for row in rows_of(suite):
            box.reset()
            assert box.run(program_of(suite)).ok
            check(cage, wrong, row, answer_in(box, cage, row), IN_SESSIONS)
    assert not wrong


@pytest.mark.extended(keep=1)
@pytest.mark.parametrize(
    ("suite", "place"),
    [(suite, "fork") for suite in SUITES] + [(suite, "forked again") for suite in ORDINARY],
    indirect=["suite"],
)
def test_no_attempt_gets_out_of_a_forked_session(cage: Cage, suite: str, place: str) -> None:
    """Each attempt is made in a fork of its own, or in one that has been forked; its relative lives on."""
    listeners = mechanisms_or_skip()[FORKS]
    if not listeners.available:
        pytest.skip(f"sessions cannot be forked here: {listeners.detail}")
    wrong: dict[str, str] = {}
    with dios.Sandbox(
        node=cage.node, template=TEMPLATE, memory=MEMORY, timeout=PATIENCE_S, forkable=True
    ) as kept:
        assert kept.run(program_of(suite)).ok
        for row in rows_of(suite):
            with kept.fork() as fork, ExitStack() as stack:
                other = kept if place == "fork" else stack.enter_context(fork.fork())
                check(cage, wrong, row, answer_in(fork, cage, row), IN_SESSIONS | IN_FORKS)
                assert other.run("6 * 7").value_repr == "42", row.name
    assert not wrong


# -- the process of a template --------------------------------------------------------------------------
IN_TEMPLATES = {
    # Its tasks need these to lock themselves down; see ``policy``, and ``test_templates`` for the tasks.
    "change_directory": "did",
    "other_filter": "did",
    "become_dumpable": "did",
    "survive_the_zygote": "did",
    # By the kernel, and not by the filter.
    "undo_no_new_privs": "EINVAL",
    # It reaches itself alone: the process has a session of its own.
    "kill_group": "GONE",
}
"""Attempts with another answer in the process of a template, while it imports its modules."""


@pytest.fixture
def mechanisms() -> dict[str, Mechanism]:
    """What the machine has; without what pure tasks need there is nothing to test here."""
    return mechanisms_or_skip()


def module_of(suite: str, loot: Mapping[str, object], names: list[str]) -> str:
    """Return a module that makes attempts at its import, and keeps the answers in ``FOUND``."""
    return (
        f"import json, escape_{suite} as attempts\nfrom escape_tools import LOOT, attempt_of, outcome\n"
        f"LOOT.update(json.loads({json.dumps(loot)!r}))\n"
        f"FOUND = {{name: outcome(attempt_of(attempts, name)) for name in {names!r}}}\n"
    )


@pytest.fixture
def modules() -> Iterator[Path]:
    """A folder for modules of templates, which other users can read."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def witness(tmp_path: Path) -> Iterator[Witness]:
    """What no attempt may change."""
    with ExitStack() as stack:
        yield Witness(tmp_path, stack)


@pytest.mark.extended(keep=1)
async def test_no_attempt_gets_out_of_a_template(
    mechanisms: dict[str, Mechanism], suite: str, modules: Path, witness: Witness
) -> None:
    """Those that a task survives are made at one import, each of the others in a template of its own."""
    rows = rows_of(suite)
    loot = {**witness.traps.loot, "victim": witness.victim.pid, "node": os.getpid(), "store": str(modules)}
    alone = [
        row.name
        for row in rows
        if row.is_greed or row.name in IN_TEMPLATES or any(word.startswith("SIG") for word in row.answers)
    ]
    sets = {
        "harmless": [row.name for row in rows if row.name not in alone],
        **{name: [name] for name in alone},
    }
    sets = {name: names for name, names in sets.items() if names}
    for name, names in sets.items():
        (modules / f"made_{name}.py").write_text(module_of(suite, loot, names))
    templates = [
        TemplateSetting(f"t{number}", (f"made_{name}",), TEMPLATE_MEMORY) for number, name in enumerate(sets)
    ]
    answers: dict[str, str] = {}
    async with pool_with_templates(mechanisms, *templates, folder=modules) as pool:
        for name, setting in zip(sets, templates, strict=True):
            try:
                await pool.prepare(setting.name)
                task = await pool.spawn(Brand.PURE, Limits(), setting.name)
            except dios.DiosError as error:
                answers[name] = ending(error.message)
                continue
            with closing(task):
                said = await attempt(task, f"found_at_import made_{name}")
                answers |= json.loads(said.removeprefix("did:"))
        # Whatever became of the templates, other tasks start.
        with closing(await pool.spawn(Brand.PURE, Limits())) as task:
            assert await attempt(task, "import_library") == "did:True"
    witness.unharmed()
    assert "harmless" not in answers, answers
    assert not {row.name: answers[row.name] for row in rows if not is_refused(answers[row.name], row)}


def is_refused(answer: str, row: Attempt) -> bool:
    """Return True for an answer of the row, or one for templates; greed may end its template in any way."""
    accepted = {*row.answers, IN_TEMPLATES.get(row.name, "")}
    if row.is_greed and not answer.startswith("did:"):
        return True
    return answer in accepted or answer.partition(":")[0] in accepted

"""Every system call that a pure task may make has its reason, in the table and on the page for people."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from dios.host.confinement import policy, syscall_numbers
from dios.host.confinement.arguments import ARGUMENTS, Harmless, Rule

PAGE = Path(__file__).resolve().parents[4] / "docs" / "calls.md"
ENTRIES = (policy.ANY_MEMORY, *policy.ALLOWED)
FAMILY = 4
"""Calls that may share one reason: no more, or it is the reason of none of them."""

WORDS = 3


def row_of(entry: policy.Allow) -> str:
    """The page's row for an entry."""
    names = ", ".join(f"`{name}`" for name in entry.names)
    return f"| {names} | {entry.reason} | {entry.checked or '-'} |"


def rows_of_page(heading: str) -> list[str]:
    """The rows of the table below a heading of the page, without its head."""
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}", 1)[1].split("\n## ", 1)[0]
    return [line for line in section.splitlines() if line.startswith("| `")]


def test_every_allowed_call_has_its_row_on_the_page() -> None:
    """The table grows, shrinks or changes only with its page, whose rows say the same in the same order."""
    assert rows_of_page("Allowed calls") == [row_of(entry) for entry in ENTRIES]


def row_of_arguments(name: str, signature: Mapping[str, Rule], kind: str = "") -> list[str]:
    """The page's row for the checked arguments of a call, of a process of some kind; none without any."""
    words = "; ".join(
        f"{argument}: {rule}" for argument, rule in signature.items() if not isinstance(rule, Harmless)
    )
    return [f"| `{name}`{kind and f', {kind}'} | {words.replace('|', '+')} |"] if words else []


def rows_of_arguments() -> list[str]:
    """The page's rows for the checked arguments of all calls, and for others in processes of other kinds."""
    rows = [
        row for entry in ENTRIES for name in entry.names for row in row_of_arguments(name, ARGUMENTS[name])
    ]
    for kind, table in {
        "memory not counted": (policy.COUNTED_MEMORY,),
        "no private folder": policy.ALLOWED_WITHOUT_FOLDER,
        "templates": policy.ALLOWED_FOR_TEMPLATES,
        "native programs": policy.ALLOWED_FOR_PROGRAMS,
        "forkable": policy.ALLOWED_FOR_FORKABLE,
    }.items():
        known = {name for entry in ENTRIES for name in entry.names}
        for name, entry in [(name, allow) for allow in table for name in allow.names]:
            differing = {
                argument: rule
                for argument, rule in entry.signature(name).items()
                if name not in known or rule != ARGUMENTS[name][argument]
            }
            rows += row_of_arguments(name, differing, kind)
    return rows


def test_the_page_has_the_arguments_of_every_call() -> None:
    """Each argument that is checked has its permitted values there, and each reason for any value its row."""
    assert rows_of_page("Arguments") == rows_of_arguments()
    assert rows_of_page("Harmless arguments") == [
        f"| `{reason.name.lower()}` | {reason.value} |" for reason in Harmless
    ]


def test_the_page_says_how_many_there_are() -> None:
    """The number of allowed calls stands on the page, so that one more is noticed."""
    count = sum(len(entry.names) for entry in ENTRIES)
    assert f"**{count} calls** are allowed" in " ".join(PAGE.read_text(encoding="utf-8").split())


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.names[0])
def test_a_reason_is_of_a_few_calls_and_in_words(entry: policy.Allow) -> None:
    """No reason covers more than a small family, and each says something, as does what breaks without it."""
    assert 1 <= len(entry.names) <= FAMILY
    assert len(entry.reason.split()) >= WORDS
    assert entry.without
    assert entry.checked or entry.performed


def test_no_reason_is_given_twice() -> None:
    """Two entries with one reason would be one entry, or one of them has none."""
    reasons = [entry.reason for entry in ENTRIES]
    assert len(set(reasons)) == len(reasons)


def test_a_task_without_a_folder_writes_no_file() -> None:
    """On a machine without namespaces no call that changes a file is allowed, and no such flag of open."""
    strict = {name: entry for entry in policy.ALLOWED_WITHOUT_FOLDER for name in entry.names}
    loose = {name for entry in policy.ALLOWED for name in entry.names}
    assert {"mkdir", "unlink", "rename", "ftruncate", "chmod"} <= loose - set(strict)
    for name, argument in (("openat", 2), ("open", 1)):
        check = next(check for check in strict[name].checks(name) if check.argument == argument)
        assert check.values == (os.O_RDONLY,)
        assert not any(flag & ~check.mask for flag in (os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_TRUNC))
    assert strict["fcntl"].done is None


def test_the_page_names_what_ends_a_task() -> None:
    """Every call of the list of attacks is on the page, and every call that does not exist for a task."""
    text = PAGE.read_text(encoding="utf-8")
    assert set(rows_of_page("Calls that end the task")) == {f"| `{name}` |" for name in policy.KILLED}
    assert all(f"`{name}`" in text for name in policy.NO_SUCH_CALL)


def test_every_call_of_the_policy_has_a_number() -> None:
    """A name that the table of numbers lacks would be left out of the filter without a word."""
    named = {
        name
        for entry in (*ENTRIES, *policy.ALLOWED_FOR_TEMPLATES, *policy.ALLOWED_FOR_PROGRAMS)
        for name in entry.names
    }
    named |= {*policy.KILLED, *policy.NO_SUCH_CALL, *policy.REFUSED, *policy.CALLED_BY_THE_ZYGOTE}
    assert named <= set(syscall_numbers.NUMBERS)


def test_every_number_is_the_kernels() -> None:
    """Where this machine's kernel headers are installed, the numbers are theirs."""
    machine = os.uname().machine
    places = (Path(f"/usr/include/{machine}-linux-gnu/asm/unistd_64.h"), Path("/usr/include/asm/unistd_64.h"))
    header = next((place for place in places if place.is_file()), None)
    if header is None or machine != "x86_64":
        pytest.skip("no kernel headers of x86_64 here")
    known = {name: int(value) for name, value in re.findall(r"__NR_(\w+) (\d+)", header.read_text())}
    wrong = {
        name: (row[0], known.get(name))
        for name, row in syscall_numbers.NUMBERS.items()
        if name in known and row[0] != known[name]
    }
    assert not wrong, wrong


def test_the_page_names_what_a_template_may_do_in_addition() -> None:
    """Each call that differs has a row, and a template may do all that a task may."""
    rows = " ".join(rows_of_page("The process of a template"))
    known = {entry.names: entry for entry in policy.ALLOWED}
    for entry in policy.ALLOWED_FOR_TEMPLATES:
        if known.get(entry.names) != entry:
            assert all(f"`{name}`" in rows for name in entry.names), entry.names
    allowed = {name for entry in policy.ALLOWED_FOR_TEMPLATES for name in entry.names}
    assert {name for entry in policy.ALLOWED for name in entry.names} <= allowed


def test_the_page_names_what_native_programs_need_in_addition() -> None:
    """Each further call has its row with the reason, and nothing else differs."""
    further = [entry for entry in policy.ALLOWED_FOR_PROGRAMS if entry not in policy.ALLOWED]
    assert rows_of_page("A node with native programs") == [
        f"| `{entry.names[0]}` | {entry.reason} | {entry.checked or '-'} |" for entry in further
    ]
    assert len(further) + len(policy.ALLOWED) == len(policy.ALLOWED_FOR_PROGRAMS)


def test_the_page_names_what_differs_for_sessions_that_can_be_forked() -> None:
    """Each call that differs has a row, and none is permitted that neither a task nor a fork needs."""
    rows = " ".join(rows_of_page("Sessions that can be forked"))
    known = {entry.names: entry for entry in policy.ALLOWED}
    differ = [entry for entry in policy.ALLOWED_FOR_FORKABLE if known.get(entry.names) != entry]
    for entry in differ:
        assert all(f"`{name}`" in rows for name in entry.names), entry.names
    allowed = {name for entry in policy.ALLOWED_FOR_FORKABLE for name in entry.names}
    assert allowed - {name for entry in policy.ALLOWED for name in entry.names} == {
        "setsid",
        "close_range",
        "chdir",
    }
    assert {name for entry in policy.ALLOWED for name in entry.names} - allowed == {"tgkill"}

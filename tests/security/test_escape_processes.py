"""Hostile programs after other programs and processes, each in a pure task of a running node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.security.escape import Attempt, Cage, check_plainly, name_of, open_cage, row

PROGRAMS = (
    row("execute_shell", "EPERM", "no shell"),
    row("execute_python", "EPERM", "no interpreter"),
    row("execute_setuid_program", "EPERM", "no program that has another user's rights"),
    row("execute_library", "EPERM", "no file by its descriptor"),
    row("execute_at", "EPERM", "nor by the newer call"),
    row("run_program", "EPERM ENOENT", "the library starts no program", "did"),
    row("spawn_program", "EPERM", "nor does the C library", "did"),
    row("open_terminal", "ENOENT OSError", "no terminal is made", "did"),
)
OWN = (
    row("fork", "EPERM", "no process of its own", "did"),
    row("vfork_by_number", "EPERM ENOSYS", "nor by the older call"),
    row("fork_bomb", "EPERM", "a fork bomb does not begin"),
    row("process_pool", "ENOENT EPERM", "no pool of processes", "did"),
    row("clone_process", "EPERM", "no process by the call below"),
    row("clone_sharing_memory", "EPERM", "nor one that shares its memory"),
    row("clone_sibling", "EPERM", "nor one beside it, that would not end with it"),
    row("clone_into_namespace", "EPERM", "nor a thread in a namespace of its own"),
    row("clone_by_structure", "ENOSYS", "the call whose flags no filter sees does not exist"),
    row("clone_into_group", "ENOSYS", "so no limit is left by it"),
    row("wait_for_others", "EPERM", "there is nobody to wait for", "ECHILD"),
)
OTHERS = (
    row("trace_other", "SIGSYS", "tracing another process ends the task"),
    row("seize_other", "SIGSYS", "also by the newer way"),
    row("be_traced", "SIGSYS", "being traced ends it"),
    row("read_other", "SIGSYS", "reading another process's memory ends it"),
    row("write_other", "SIGSYS", "writing it ends it"),
    row("read_itself_that_way", "SIGSYS", "even its own, by that call", "did"),
    row("compare_with_other", "SIGSYS", "comparing what two processes share ends it"),
    row("advise_other", "SIGSYS", "taking another's pages out of memory ends it"),
    row("reap_other", "EPERM", "nor is a dying one's memory taken"),
    row("signal_other", "EPERM", "whether a process is there cannot be asked"),
    row("kill_other", "EPERM", "another process is not ended"),
    row("kill_node", "EPERM", "nor the node"),
    row("kill_everybody", "EPERM", "nor all at once"),
    row("kill_group", "EPERM", "nor its own group, in which others might be"),
    row("kill_groups_of_others", "EPERM", "nor another group"),
    row("kill_thread_of_other", "EPERM", "nor by thread"),
    row("kill_by_old_call", "EPERM", "nor by the older call"),
    row("queue_signal", "EPERM", "no signal is queued"),
    row("queue_signal_to_thread", "EPERM", "nor for a thread"),
    row("signal_by_descriptor_owner", "EPERM", "the kernel sends none for it"),
    row("hold_other", "EPERM", "no hold of another process"),
    row("hold_itself", "EPERM", "nor of itself", "did"),
    row("take_descriptor_of_other", "SIGSYS", "taking another's descriptor ends it"),
    row("signal_by_hold", "EPERM", "no signal by hold"),
)
SCHEDULING = (
    row("be_first", "EPERM", "no real-time scheduling"),
    row("be_first_by_parameter", "EPERM", "nor by its parameters", "did"),
    row("be_first_by_structure", "EPERM", "nor by the newer call", "EINVAL"),
    row("be_nicer_to_itself", "EPERM", "no higher priority"),
    row("slow_other", "EPERM", "no lower one for another process"),
    row("pin_other", "EPERM", "another process is not moved to one processor"),
    row("pin_itself", "EPERM", "nor it itself, to sit beside somebody it listens to", "did"),
    row("prefer_own_disk_calls", "EPERM", "no priority at the disk", "did"),
    row("raise_own_limit", "EPERM", "its limits are not its to raise"),
    row("raise_own_limit_by_old_call", "EPERM", "nor by the older call"),
    row("limits_of_other", "EPERM", "another's limits are not its to see"),
    row("limit_other", "EPERM", "nor to set, which would end it"),
)
IDENTITY = (
    row("unshare_user", "SIGSYS", "a user namespace, in which it would be root, ends it"),
    row("unshare_network", "SIGSYS", "a network namespace ends it"),
    row("unshare_mounts", "SIGSYS", "a mount namespace ends it"),
    row("join_namespace", "SIGSYS", "joining one ends it"),
    row("become_root", "EPERM", "it does not become root"),
    row("become_other_user", "EPERM", "nor another user"),
    row("become_other_group", "EPERM", "nor another group"),
    row("join_groups", "EPERM", "nor a member of one"),
    row("files_as_root", "EPERM", "nor so for files alone", "did"),
    row("take_capabilities", "EPERM", "it takes no capabilities"),
    row("raise_ambient_capability", "EPERM", "nor those that are handed on"),
    row("keep_capabilities", "EPERM", "nor keeps any", "did"),
    row("undo_no_new_privs", "EPERM", "what says that it gains no privilege stays", "EINVAL"),
    row("become_dumpable", "EPERM", "its memory stays closed to others of its user", "did"),
    row("survive_the_zygote", "EPERM", "it ends with the node", "did"),
    row("let_others_trace", "EPERM", "it names nobody who may trace it", "did|EINVAL"),
    row("move_its_own_layout", "EPERM", "it shows no other name in lists"),
    row("adopt_orphans", "EPERM", "it adopts nobody's children", "did"),
    row("new_session", "EPERM", "it stays in its session", "did"),
    row("new_process_group", "EPERM", "and in its group", "did|EPERM"),
    row("rename_host", "EPERM", "the host is not renamed"),
    row("rename_domain", "EPERM", "nor its domain"),
    row("system_v", "EPERM", "nothing is shared by number"),
    row("message_queue", "EPERM", "nor by name"),
)
ALL = (*PROGRAMS, *OWN, *OTHERS, *SCHEDULING, *IDENTITY)


@pytest.fixture(scope="module")
def cage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cage]:
    """One node, neighbour and set of witnesses for all attempts."""
    with open_cage(tmp_path_factory.mktemp("processes"), "escape_processes") as opened:
        yield opened


@pytest.mark.parametrize("attempt", ALL, ids=name_of)
def test_escape(cage: Cage, attempt: Attempt) -> None:
    """Each attempt is answered as its row says, the other process lives on, and the neighbour is served."""
    cage.refuses(attempt)


def test_a_task_leaves_no_mark_for_the_next(cage: Cage) -> None:
    """Flags that one task sets on the descriptors it was born with are not seen by another."""
    before, _ = cage.run("see_marks")
    assert cage.run("leave_a_mark")[0] == ["did:left"]
    after, _ = cage.run("see_marks")
    assert before == after
    assert before[0].startswith("did:[")


def test_the_attempts_are_real(cage: Cage) -> None:
    """An ordinary program of the same user gets through with those attempts that can be made outside."""
    check_plainly(cage, ALL)

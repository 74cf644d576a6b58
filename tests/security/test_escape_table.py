"""Hostile programs against the table of arguments, each in a pure task of a running node.

``test_escape_kernel`` has single calls; here all values of an argument beyond the permitted ones are tried.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.security.escape import Attempt, Cage, check_plainly, name_of, open_cage, row

THREADS = (
    row("thread_with_a_high_half", "EPERM", "the high half of the flags of a thread is not ignored"),
    row("thread_with_any_other_flag", "nothing", "no flag or signal beyond those of a thread"),
    row("thread_with_less_in_common", "nothing", "nor a thread that shares less with the others"),
    row("register_again", "nothing", "what the kernel knows of a thread is not taken back", "did"),
    row("stop_all_processors", "EPERM", "no barrier stops the machine's processors", "did"),
)
MEMORY = (
    row("mapping_of_every_other_kind", "nothing", "no other kind of mapping, in any of 64 bits", "did"),
    row("every_other_protection", "nothing", "no other protection", "did|nothing"),
    row("move_onto_a_place", "nothing", "no memory is moved to a place of its choice", "did"),
    row("every_other_advice", "nothing", "no other advice about memory", "did"),
    row("pages_of_the_cache", "EPERM ENOSYS", "what others have read is not told", "did|ENOSYS|EPERM"),
)
ITSELF = (
    row("every_other_control", "nothing", "no control of the process but the names of threads"),
    row("every_base_register", "nothing", "no base register, and no control of the processor"),
    row(
        "signal_by_high_numbers", "nothing", "no number names another process, whatever its high half", "did"
    ),
    row(
        "signal_thread_elsewhere", "nothing", "a thread's number is looked for in its own process", "nothing"
    ),
    row("limit_by_high_pointer", "EPERM", "no limits are set by a pointer with a low half of 0", "EFAULT"),
    row("resume_nothing", "EINTR", "where no call was broken, none is resumed", "EINTR"),
)
DESCRIPTORS = (
    row("every_other_command", "nothing", "no owner, signal, lease, watch or seal of a descriptor", "did"),
    row("every_request_of_files_and_sockets", "nothing", "no request but six", "did"),
    row("every_other_option_of_a_socket", "nothing", "no option tells of its peer", "did"),
    row("set_every_option_of_a_socket", "nothing", "no option is set", "did"),
    row("more_room_in_a_socket", "did:same", "the kernel's memory for a socket does not grow", "did"),
    row("send_with_every_flag", "nothing", "no other flag when it sends", "did"),
    row("send_to_high_address", "EPERM", "nor an address with a low half of 0"),
    row("receive_with_every_flag", "nothing", "nor when it receives", "did"),
    row("forge_credentials", "EPERM", "it does not speak to the node as another process"),
    row("pair_of_every_kind", "nothing", "no pair of packets or datagrams", "did"),
    row("pipe_of_every_kind", "nothing", "no pipe of packets or notifications", "did"),
    row("queue_that_watches_itself", "ELOOP", "the kernel refuses queues in a circle", "ELOOP"),
    row("queues_for_signals_and_timers", "nothing", "no descriptor of signals, timers or files", "did"),
)
FILES = (
    row("every_other_clock", "nothing", "no clock that wakes the machine, or of another process", "did"),
    row("every_other_status", "nothing", "no number of a mount, and no other status of a file", "did"),
    row("every_other_way_to_open", "nothing", "no other flag when it opens a file", "did"),
    row("file_with_another_owners_rights", "nothing", "no file of its folder runs as its owner"),
    row("race_with_a_path", "nothing", "a path that changes under the kernel leads nowhere else"),
    row("lock_by_every_command", "did:free", "a lock is told and not held"),
)
NUMBERS = (
    row("x32_numbers_without_the_bit", "nothing", "the numbers of x32 are no calls without its bit"),
    row("newest_calls", "nothing", "no call of a newer kernel than the table"),
    row("go_to_32_bits", "SIGSYS nothing", "a segment of 32 bits does not change the filter's numbers"),
    row("own_death_by_its_filter", "SIGSYS", "a thread that ignores the filter's signal ends the task"),
)
ALL = (*THREADS, *MEMORY, *ITSELF, *DESCRIPTORS, *FILES, *NUMBERS)


@pytest.fixture(scope="module")
def cage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cage]:
    """One node, neighbour and set of witnesses for all attempts."""
    with open_cage(tmp_path_factory.mktemp("table"), "escape_table") as opened:
        yield opened


@pytest.mark.parametrize("attempt", ALL, ids=name_of)
def test_escape(cage: Cage, attempt: Attempt) -> None:
    """Each attempt is answered as its row says, and the neighbour is served."""
    cage.refuses(attempt)


def test_the_attempts_are_real(cage: Cage) -> None:
    """An ordinary program of the same user is answered otherwise, where it can be made outside."""
    check_plainly(cage, ALL)

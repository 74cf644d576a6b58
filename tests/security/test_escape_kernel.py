"""Hostile programs that attack the kernel's own surface, each in a pure task of a running node."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

import dios
from tests.support.security.escape import Attempt, Cage, check_plainly, name_of, open_cage, row

MACHINERY = (
    row("load_program", "SIGSYS", "loading a program into the kernel ends the task"),
    row("make_map", "SIGSYS", "so does a table for one"),
    row("ring_of_calls", "SIGSYS", "calls through a ring, which no filter sees, end it"),
    row("enter_ring", "SIGSYS", "also on a ring that it would have been handed"),
    row("register_with_ring", "SIGSYS", "nor does it register anything there"),
    row("old_ring_of_calls", "EPERM", "nor the older kind"),
    row("count_events", "SIGSYS", "counting the processor's events ends it"),
    row("handle_page_faults", "SIGSYS", "holding the kernel up in a page fault ends it"),
    row("load_module", "SIGSYS", "loading a module ends it"),
    row("load_module_file", "SIGSYS", "also from a file"),
    row("remove_module", "SIGSYS", "removing one ends it"),
    row("other_kernel", "SIGSYS", "another kernel ends it"),
    row("other_kernel_file", "SIGSYS", "also from a file"),
    row("restart", "SIGSYS", "restarting the machine ends it"),
    row("swap_off", "SIGSYS", "taking swap space ends it"),
    row("swap_on", "SIGSYS", "giving swap space ends it"),
    row("account_processes", "SIGSYS", "the record of processes is not its to set"),
    row("set_clock", "EPERM", "the machine's clock is not its to set"),
    row("adjust_clock", "EPERM", "nor to adjust, nor to read by that call", "EFAULT"),
    row("hang_up", "EPERM", "no terminal is hung up"),
)
SECRETS = (
    row("add_key", "SIGSYS", "the kernel's keyrings end it"),
    row("request_key", "SIGSYS", "also asking for a key"),
    row("read_keyring", "SIGSYS", "also the keyring that it inherited from the daemon"),
    row("kernel_log", "EPERM", "the kernel's log is not read"),
    row("size_of_kernel_log", "EPERM", "nor measured", "did|EPERM"),
    row("cached_pages", "EPERM", "which pages others have read is not told", "did"),
    row("drop_cached_pages", "EPERM", "nor are they dropped", "did"),
)
SANDBOX = (
    row("other_filter", "EPERM", "another filter, which could only be stricter, is refused"),
    row("filter_by_prctl", "EPERM", "also by the older call"),
    row("strict_mode", "EPERM", "also the oldest kind"),
    row("listen_to_filter", "EPERM", "it does not become the judge of calls"),
    row("other_rules", "EPERM", "no other rules for files", "did|ENOSYS|EOPNOTSUPP"),
    row("restrict_again", "EPERM", "nor are any put on"),
    row("intercept_own_calls", "EPERM", "its calls are the kernel's to answer"),
    row("speculate", "EPERM", "what the processor may guess is not its to choose"),
)
PROCESSOR = (
    row("segments", "SIGSYS ENOSYS", "segments of its own end it", "did|ENOSYS"),
    row("ports", "SIGSYS ENOSYS", "the machine's ports end it"),
    row("port", "SIGSYS ENOSYS", "also a single one"),
    row("personality", "EPERM", "it does not choose how its memory is laid out"),
    row("base_registers", "EPERM ENOSYS", "nor its base registers by call", "EFAULT|EINVAL|ENOSYS"),
    row("memory_keys", "EPERM", "no keys of memory", "did|EINVAL|ENOSPC|ENOSYS"),
    row("execute_by_x32", "SIGSYS ENOSYS", "a program by the numbers of the x32 ABI ends it"),
    row("read_by_x32", "SIGSYS ENOSYS", "also a harmless call by those numbers"),
    row("number_below_zero", "SIGSYS ENOSYS", "a number below zero is one of those"),
    row("number_of_nothing", "ENOSYS", "a number of no call yet is none", "ENOSYS"),
    row("number_with_high_bits", "EPERM ENOSYS", "bits above the number hide nothing"),
    row("call_of_32_bits", "SIGSYS SIGSEGV nothing", "a call of the 32 bit kind ends it"),
    row("harmless_call_of_32_bits", "SIGSYS SIGSEGV nothing", "also a harmless one"),
)
MEMORY = (
    row("huge_pages", "EPERM", "no huge pages are taken from others", "ENOMEM|did"),
    row(
        "merge_pages",
        "EPERM",
        "no equal pages are merged, which would tell of others'",
        "did|EINVAL",
    ),
    row("map_address_zero", "EPERM EACCES", "nothing is put at address 0, where the kernel's bugs look"),
    row("lock_memory", "EPERM", "no memory is kept from being swapped"),
    row("move_pages", "EPERM", "no pages are moved between processors"),
    row("place_memory", "EPERM", "nor placed"),
    row("splice_pipes", "EPERM", "no pages are moved into pipes"),
    row("remap_pages", "EPERM", "no pages are mapped out of order"),
    row("poison_page", "EPERM EINVAL", "no page of the machine is declared broken"),
)
FUTEXES = (
    row("wake_nobody", "did:0", "waking where nobody waits wakes nobody", "did"),
    row("wait_for_other_value", "EAGAIN", "waiting for another value does not wait", "EAGAIN"),
    row("futex_at_odd_address", "EINVAL", "a lock at an odd address is none", "EINVAL"),
    row("futex_of_kernel", "EFAULT", "nor is one in the kernel's memory", "EFAULT"),
    row("requeue_to_itself", "EINVAL ENOSYS", "a lock that waits for itself is none", "EINVAL|ENOSYS"),
    row("requeue_less_than_none", "EINVAL", "fewer than no waiters are none", "EINVAL"),
    row("lock_owned_by_nobody", "ENOSYS", "no lock has an owner by number"),
    row("lock_between_processes", "ENOSYS", "nor does one that others share"),
    row("wait_for_many", "EPERM", "the newest call of locks is not needed", "EINVAL|ENOSYS"),
    row("robust_list_into_kernel", "did:0", "a list of locks in the kernel's memory is never followed"),
    row("robust_list_of_others", "EPERM", "others' lists of locks are not told"),
)
NUMBERS = (
    row("clock_of_process", "EPERM", "no clock of a process by its number", "did|EINVAL"),
    row("clock_of_thread", "EPERM", "nor of a thread", "did|EINVAL"),
    row("clock_of_device", "EPERM", "nor of a device", "EINVAL|EOPNOTSUPP"),
    row("sleep_by_another_clock", "EPERM", "nor is one slept by", "EINVAL|EFAULT|EOPNOTSUPP|did"),
    row("descriptor_of_thread", "EPERM", "no descriptor of a thread"),
    row("out_of_band", "EPERM", "no byte out of band", "did|EOPNOTSUPP|EPIPE"),
    row("read_errors_of_socket", "EPERM", "no queue of errors", "EAGAIN|EOPNOTSUPP|EINVAL|did"),
    row("signals_of_descriptor", "EPERM", "no signals for a descriptor", "did"),
    row("owner_of_descriptor", "EPERM", "nor an owner of one", "did|EPERM|ESRCH"),
    row("pipe_of_notifications", "EPERM", "no pipe for messages of the kernel", "did|ENOPKG|EINVAL"),
    row(
        "unbuffered_reading", "EPERM", "no reading around the cache, which makes the disk work", "did|EINVAL"
    ),
    row("affinity_of_others", "ENOSYS", "no processors of another process", "ESRCH"),
)
DEVICES = (
    row("type_for_others", "EPERM", "nothing is typed in another's name"),
    row("take_terminal", "EPERM", "no terminal is taken"),
    row("paste_into_terminal", "EPERM", "nothing is pasted into one"),
    row("every_other_request", "nothing", "no driver is asked for anything", "did"),
    row("handle_the_unhandled", "EINVAL", "the signal that ends it is not handled", "EINVAL"),
    row("handle_the_filters_signal", "SIGSYS", "the filter's signal is not handled either"),
    row("block_the_filters_signal", "SIGSYS", "nor blocked"),
)
ALL = (*MACHINERY, *SECRETS, *SANDBOX, *PROCESSOR, *MEMORY, *FUTEXES, *NUMBERS, *DEVICES)
ALLOWED_TO_FAIL = (
    row(
        "old_entry_page",
        "did:time nothing SIGSEGV SIGSYS",
        "the fixed page of old kernels gives clocks alone",
    ),
    row("return_from_no_signal", "SIGSEGV SIGILL SIGBUS SIGTRAP", "a forged signal frame is its own end"),
)
"""What ends or answers a task by the kernel's own hand and not by the filter's."""


@pytest.fixture(scope="module")
def cage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cage]:
    """One node, neighbour and set of witnesses for all attempts."""
    with open_cage(tmp_path_factory.mktemp("kernel"), "escape_kernel") as opened:
        yield opened


@pytest.mark.parametrize("attempt", ALL, ids=name_of)
def test_escape(cage: Cage, attempt: Attempt) -> None:
    """Each attempt is answered as its row says, by an errno or by the task's end; the neighbour is served."""
    cage.refuses(attempt)


@pytest.mark.parametrize("attempt", ALLOWED_TO_FAIL, ids=name_of)
def test_the_kernel_answers_for_itself(cage: Cage, attempt: Attempt) -> None:
    """What the filter lets pass harms its author alone: an errno, or the end of the task by its own fault."""
    said, status = cage.run(attempt.name)
    if status.signal:
        assert status.cause in {dios.Cause.SIGNAL, dios.Cause.SANDBOX}, status
        said = [signal_of(status)]
    assert said, status
    assert said[0] in attempt.answers, (attempt.claim, said, status)
    cage.neighbour.is_answered()
    cage.witness.unharmed()


def signal_of(status: dios.Status) -> str:
    """The name of the signal that ended a task."""
    return signal.Signals(status.signal).name


def test_the_attempts_are_real(cage: Cage) -> None:
    """An ordinary program of the same user is answered otherwise, where it can be made outside."""
    check_plainly(cage, ALL)

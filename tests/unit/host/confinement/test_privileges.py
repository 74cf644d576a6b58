from __future__ import annotations

import os

import pytest

from dios.host.confinement import linux_calls, privileges
from tests.support.node.subprocess_lines import lines_of

STATUS = """
import sys
from dios.host.confinement import linux_calls, privileges

def status(*names):
    rows = dict(line.split(":", 1) for line in open("/proc/self/status"))
    for name in names:
        print(rows[name].strip())
"""
SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to have something to give up")


def test_no_new_privileges_is_kept_by_the_kernel() -> None:
    """The kernel's own account says so, and it cannot be taken back."""
    said = lines_of(
        STATUS + "privileges.no_new_privileges()\nstatus('NoNewPrivs')\n"
        "try:\n    linux_calls.prctl(linux_calls.PR_SET_NO_NEW_PRIVS, 0)\n"
        "except OSError as error:\n    print(error.errno)"
    )
    assert said == ["1", "22"]


@needs_root
def test_an_unprivileged_process_keeps_what_it_was_told_to_keep() -> None:
    """From root to nobody: every id is changed, no group is left, and the two kept capabilities are there."""
    said = lines_of(
        STATUS + "had = privileges.permitted()\n"
        "privileges.become_unprivileged(privileges.KEPT_BY_THE_ZYGOTE)\n"
        "status('Uid', 'Gid', 'Groups')\n"
        "wanted = sum(1 << n for n in privileges.KEPT_BY_THE_ZYGOTE)\n"
        "print(privileges.permitted() == had & wanted)"
    )
    other = str(privileges.UNPRIVILEGED_ID)
    assert said[0].split() == said[1].split() == [other] * 4
    assert said[2:] == ["", "True"]


@needs_root
def test_dropping_everything_empties_every_set() -> None:
    """After it no set holds a capability, and user 0 gets none back by becoming itself."""
    said = lines_of(
        STATUS + "privileges.drop_everything(privileges.last_capability())\n"
        f"import os\nos.setresuid(0, 0, 0)\nstatus(*{SETS!r})"
    )
    assert [int(word, 16) for word in said] == [0] * len(SETS)


def test_the_last_capability_is_the_kernels() -> None:
    """The number is one that the kernel knows, and the next is not."""
    last = privileges.last_capability()
    assert last >= privileges.CAP_SYSLOG
    linux_calls.prctl(linux_calls.PR_CAPBSET_READ, last)
    with pytest.raises(OSError, match="prctl"):
        linux_calls.prctl(linux_calls.PR_CAPBSET_READ, last + 1)


def test_an_ordinary_user_may_not_mount() -> None:
    """Whether it may mount is the right and not the user's number: an empty set may not."""
    assert lines_of(STATUS + "privileges.set_capabilities(())\nprint(privileges.may_mount())") == ["False"]

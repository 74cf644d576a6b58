"""A module of a template that would outlive its supervisor: it clears its signal, and forks processes."""

from __future__ import annotations

from dios.host.confinement import linux_calls, policy

linux_calls.prctl(linux_calls.PR_SET_PDEATHSIG, 0)
for _ in range(3):
    if not linux_calls.clone_sibling(policy.CLONE_OF_FORKABLE, linux_calls.tid_address()):
        linux_calls.prctl(linux_calls.PR_SET_PDEATHSIG, 0)
        while True:
            linux_calls.syscall("pause")

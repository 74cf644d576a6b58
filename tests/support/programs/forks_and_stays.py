"""A module of a template that starts a process which nobody ordered, and can be imported."""

from __future__ import annotations

import time

from dios.host.confinement import linux_calls, policy

if linux_calls.clone_sibling(policy.CLONE_OF_SESSIONS, linux_calls.tid_address()) == 0:
    while True:
        time.sleep(1000)

"""A module of a template that starts a process which nobody ordered, and then cannot be imported."""

from __future__ import annotations

import os
import time

from dios.host.confinement import linux_calls, policy

# The flags with which a template may fork; the process ends only if somebody ends it.
if linux_calls.clone_sibling(policy.CLONE_OF_SESSIONS, linux_calls.tid_address()) == 0:
    while True:
        time.sleep(1000)

raise ValueError(f"started by {os.getpid()}")

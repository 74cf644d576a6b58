"""A module of a template that attacks while it is imported; ``FOUND`` is what came of each attempt."""

from __future__ import annotations

from pathlib import Path

import hostile_entry

ATTEMPTS = (
    "read_file /etc/passwd",
    "read_file /proc/self/mem",
    "read_file /dev/zero",
    "write_file /dev/null",
    "write_own_library",
    "write_file /planted",
    f"open_socket {2} {1}",
    f"open_socket {1} {1}",
    f"open_socket {16} {3}",
    "execute /bin/sh",
    "fork",
    "clone_process 0",
    f"clone_process {0x10000000}",
    f"clone_process {0x8000}",
    "send_signal -1",
    "open_pidfd 1",
    "take_capabilities",
    "rename_host",
    "shared_memory_segment",
    "type_into_terminal",
    "memory_file",
    "descriptors",
)

FOUND = {name: hostile_entry.outcome(*name.partition(" ")[::2]) for name in ATTEMPTS}

# What later sessions of this template have, and no other task.
MARK = bytearray(b"template")
Path("left").write_text(str(Path.cwd()), encoding="utf-8")

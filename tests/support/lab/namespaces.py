"""What the lab's machines are made of: namespaces, which the library has, and a clean environment.

Not for: what stands in them (``lab_network``, ``lab_rig``).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from labs.papers.sprayer.lab.namespaces import MachineNamespaces, NotHereError, killed_with_parent, run

__all__ = ["MachineNamespaces", "NotHereError", "clean_environment", "killed_with_parent", "run"]


def clean_environment(home: Path) -> dict[str, str]:
    """What a machine's processes find in their environment: nothing of whoever runs the lab."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("DIOS_", "XDG_"))}
    return {
        **kept,
        "HOME": str(home),
        "XDG_RUNTIME_DIR": str(home),
        # The lab is about nodes and the ways between them; a scheduler beside each takes their time.
        "DIOS_COORDINATOR": "off",
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '/usr/sbin:/usr/bin:/sbin:/bin')}",
    }

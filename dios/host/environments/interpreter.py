"""The interpreter and the machine for which the packages of an environment must be."""

from __future__ import annotations

import os
import sys


def python_here() -> str:
    """Return the interpreter and the machine of this process, as archives name them."""
    return f"{sys.implementation.cache_tag} {sys.platform} {os.uname().machine}"

"""Where Firmament's kernels find ``dios.compiled``; on its way out.

Not for: new code.
"""

from __future__ import annotations

from dios.compiled import borrowing, compiled, inlined

__all__ = ["borrowing", "compiled", "inlined"]

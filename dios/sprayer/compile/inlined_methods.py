"""Compilation of methods that only become parts of larger functions.

Numba optimizes and emits the machine code of every function that it compiles, with all functions that it
calls. A method of a network function is never called by itself, so its code is only translated here; it is
optimized once, together with the function that it is a part of.
"""

# Numba passes objects without static types to a compiler.
# mypy: allow-untyped-calls

from __future__ import annotations

from typing import Final

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder, StateDict, _LowerResult
from numba.core.compiler_machinery import register_pass
from numba.core.typed_passes import NativeLowering


class _Part(JITCodeLibrary):
    """The code of a method, as it is before any optimization of the whole."""

    def _optimize_final_module(self) -> None:
        """Do nothing: the function that it is a part of is optimized."""

    def _finalize_final_module(self) -> None:
        """Do not emit machine code."""
        self._finalize_dynamic_globals()
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _PartLowering(NativeLowering):
    """Translates a method, and lets other functions call it."""

    _name = "part_lowering"

    def run_pass(self, state: StateDict) -> bool:
        """Translate the typed code in ``state``."""
        state.library = _Part(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        lowered: _LowerResult = state.cr
        # Numba knows a function by a built-in one, which stands for its entry from Python: there is none.
        key = [state.library, lowered.env].append
        state.targetctx.insert_user_function(key, lowered.fndesc, [state.library])
        state.cr = lowered._replace(cfunc=key)
        return True


class _PartCompiler(CompilerBase):
    """Numba's compiler with another last stage."""

    def define_pipelines(self) -> list[object]:
        """Return the one sequence of passes."""
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.add_pass_after(_PartLowering, NativeLowering)
        passes.passes = [step for step in passes.passes if step[0] is not NativeLowering]
        passes.finalize()
        return [passes]


PART_OPTIONS: Final = {"pipeline_class": _PartCompiler, "no_cfunc_wrapper": True}
"""The options of Numba for a method that only becomes a part of other functions."""

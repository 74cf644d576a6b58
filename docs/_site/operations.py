"""An extension for the API reference: ``name = blocking(Base.name_op)`` is shown as the method ``name``.

Both clients make their methods from shared operations. The reference shows each with the arguments and the
docstring of its operation, and with the operation's result as the return value.
"""

from __future__ import annotations

from typing import Final

import griffe

MAKERS: Final = {"blocking": (), "awaited": ("async",)}


class Operations(griffe.Extension):
    """The replacement of assigned operations by methods."""

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **_: object) -> None:
        """Replace the assignments in every class of the package's clients."""
        del loader
        for folder in ("client.sync", "client.aio", "lib"):
            for module in pkg[folder].modules.values():
                for found in module.classes.values():
                    if not found.is_alias:
                        replace(found)


def replace(owner: griffe.Class) -> None:
    """Replace each attribute of a class that is made from an operation by a method."""
    for name, member in list(owner.attributes.items()):
        value = member.value if not member.is_alias else None
        if not isinstance(value, griffe.ExprCall) or str(value.function) not in MAKERS:
            continue
        operation = owner.all_members.get(f"{name}_op")
        if operation is None or not operation.is_function:
            continue
        method = griffe.Function(
            name,
            parameters=operation.parameters,
            returns=result_of(operation.returns),
            lineno=member.lineno,
            endlineno=member.endlineno,
            docstring=operation.docstring,
        )
        method.labels |= set(MAKERS[str(value.function)])
        owner.set_member(name, method)


def result_of(returns: str | griffe.Expr | None) -> str | griffe.Expr | None:
    """Return ``T`` of the annotation ``Operation[T]``."""
    if isinstance(returns, griffe.ExprSubscript) and str(returns.left) == "Operation":
        return returns.slice
    return returns

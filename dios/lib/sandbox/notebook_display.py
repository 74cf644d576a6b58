"""``display`` and ``clear_output`` of a session: values in the forms of a notebook, while a run goes on.

The caller accepts text, HTML and two kinds of pictures. If it shows nothing while a run goes on, values are
output as text, and tables are parts of its result.
"""

from __future__ import annotations

import base64
import binascii
import os
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Final, cast

import msgspec

from dios.lib.sandbox import display
from dios.lib.sandbox.bounds import DISPLAY_ID_CHARS_MAX, HTML_CHARS_MAX
from dios.lib.sandbox.failures import clean
from dios.lib.sandbox.pictures import is_jpeg, is_png
from dios.lib.sandbox.protocol import DisplayKind, DisplayRecord

if TYPE_CHECKING:
    from dios.lib.sandbox.display import Figure

_IPYTHON_DISPLAY: Final = "IPython.core.display_functions"

_METHODS: Final = {
    "_repr_mimebundle_": "",
    "_repr_html_": "text/html",
    "_repr_png_": "image/png",
    "_repr_jpeg_": "image/jpeg",
}
"""The methods by which values have other forms than text; the first one has several."""
_FORMS: Final = frozenset({"text/plain", *filter(None, _METHODS.values())})
"""The forms that a caller accepts."""
_CHECKS: Final[dict[str, Callable[[bytes], bool]]] = {
    "text/html": lambda data: len(data.decode(errors="replace")) <= HTML_CHARS_MAX,
    "image/png": is_png,
    "image/jpeg": is_jpeg,
}


class Display:
    """``display`` and ``clear_output`` of a session, with the arguments that they have in notebooks."""

    def __init__(self, send: Callable[[DisplayRecord], None], clear: Callable[[bytes], None]) -> None:
        self._send: Final = send
        self._send_clear: Final = clear
        self._shown: display.DisplayedValues
        self.is_shown = False
        """True if the caller of the present run shows values while it runs."""

    def begin(self, shown: display.DisplayedValues, *, is_shown: bool) -> None:
        """Begin a run."""
        self._shown, self.is_shown = shown, is_shown

    def display(self, *values: object, display_id: object = None, **options: object) -> DisplayHandle | None:
        """Show values as if each were the last expression of a cell."""
        if options.get("clear"):
            self.clear_output(wait=True)
        name = f"display-{os.urandom(8).hex()}" if display_id is True else str(display_id or "")
        for value in values:
            self._show(value, DisplayKind.NEW, name, raw=bool(options.get("raw")))
        return DisplayHandle(name, self) if name else None

    def update(self, *values: object, display_id: object, **options: object) -> None:
        """Show values in the places with an id, instead of what is there."""
        for value in values:
            self._show(value, DisplayKind.UPDATE, str(display_id), raw=bool(options.get("raw")))

    def publish(self, data: Mapping[str, object], *_: object, **options: object) -> None:
        """Show a value that is given in its forms."""
        transient = options.get("transient")
        name = transient.get("display_id") if isinstance(transient, dict) else None
        kind = DisplayKind.UPDATE if options.get("update") else DisplayKind.NEW
        self._show(data, kind, "" if name is None else str(name), raw=True)

    def clear_output(self, wait: bool = False) -> None:  # noqa: FBT001, FBT002 - as in notebooks
        """Drop what the cell has shown so far; with ``wait`` when the next value or text comes."""
        if self.is_shown and self._shown.may_show(0):
            self._send_clear(b"\1" if wait else b"\0")

    def show_value(self, value: object) -> None:
        """Show the value of a cell, if it has other forms than text, in these."""
        if _is_figure(value) or any(_method(value, name) for name in _METHODS):
            forms = _forms_of(value, self._shown)
            record = _record(forms, DisplayKind.VALUE, "")
            if forms.keys() - {"text/plain"} and self._shown.may_show(record.size):
                self._send(record)

    def _show(self, value: object, kind: DisplayKind, name: str, *, raw: bool) -> None:
        custom = None if raw else _method(value, "_ipython_display_")
        if custom is not None and self.is_shown:
            custom()
            return
        shown = self._shown
        count = len(shown.tables)
        if not raw and shown.take_table(value):
            if self.is_shown and len(shown.tables) > count:
                table = msgspec.Raw(msgspec.msgpack.encode(shown.tables[-1]))
                if shown.may_show(0):
                    shown.tables.pop()
                    shown.shown_tables += 1
                    self._send(DisplayRecord(kind, tables=[table], id=_display_id(name)))
            return
        forms = _checked(cast("Mapping[object, object]", value), shown) if raw else {}
        if self.is_shown:
            forms = forms if raw else _forms_of(value, shown)
            record = _record(forms, kind, name)
            if shown.may_show(record.size):
                self._send(record)
                return
        text = forms.get("text/plain", b"").decode() if raw else display.shown_value(value, shown.bounds)
        sys.stdout.write(text + "\n")


class DisplayHandle:
    """A place in which a cell shows a value, and others instead of it."""

    def __init__(self, display_id: str, shows: Display) -> None:
        self.display_id: Final = display_id
        self._display: Final = shows

    def display(self, value: object, **options: object) -> None:
        """Show a value in a further place with this id."""
        self._display.display(value, display_id=self.display_id, **options)

    def update(self, value: object, **options: object) -> None:
        """Show another value in all places with this id."""
        self._display.update(value, display_id=self.display_id, **options)


class _IPythonFinder:
    """Gives ``IPython.display``, where IPython is installed, the functions of this session."""

    def __init__(self, shows: Display) -> None:
        self._functions: Final = {
            "display": shows.display,
            "update_display": shows.update,
            "clear_output": shows.clear_output,
            "publish_display_data": shows.publish,
        }
        self._is_looking = False

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        """Return the module that the other finders find, with these functions."""
        if name != _IPYTHON_DISPLAY or self._is_looking:
            return None
        self._is_looking = True
        try:
            spec = find_spec(name)
        finally:
            self._is_looking = False
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_with_functions(module: ModuleType) -> None:
                load(module)
                vars(module).update(self._functions)

            spec.loader.exec_module = load_with_functions  # type: ignore[method-assign] # of this module alone
        return spec


def _record(forms: Mapping[str, bytes], kind: DisplayKind, name: str) -> DisplayRecord:
    return DisplayRecord(
        kind,
        text=forms.get("text/plain", b"").decode(),
        html=forms.get("text/html", b"").decode(),
        png=forms.get("image/png", b""),
        jpeg=forms.get("image/jpeg", b""),
        id=_display_id(name),
    )


def _method(value: object, name: str) -> Callable[[], object] | None:
    """Return a method of a value; None if its class has none of that name."""
    method = None if isinstance(value, type) else getattr(type(value), name, None)
    return (lambda: method(value)) if callable(method) else None


def _is_figure(value: object) -> bool:
    figures = sys.modules.get("matplotlib.figure")
    return figures is not None and isinstance(value, getattr(figures, "Figure", ()))


def _forms_of(value: object, shown: display.DisplayedValues) -> dict[str, bytes]:
    """Return a value in the forms that it has, encoded; at least as text."""
    forms: dict[object, object] = {}
    for name, form in _METHODS.items():
        call = _method(value, name)
        if call is None:
            continue
        try:
            answer = call()
        except Exception as error:  # noqa: BLE001 - code of the session
            shown.warn(f"{type(value).__qualname__}.{name} failed: {type(error).__name__}: {error}")
            continue
        # The second part of a pair are metadata.
        data = answer[0] if isinstance(answer, tuple) and answer else answer
        if not form:
            forms.update(data if isinstance(data, Mapping) else {})
        elif data is not None:
            forms.setdefault(form, data)
    if "image/png" not in forms and _is_figure(value):
        forms["image/png"] = display.drawn(cast("Figure", value), shown.warn) or None
    checked = _checked(forms, shown)
    return (
        checked
        if "text/plain" in checked
        else {"text/plain": display.shown_value(value, shown.bounds).encode(), **checked}
    )


def _checked(forms: Mapping[object, object], shown: display.DisplayedValues) -> dict[str, bytes]:
    """Return the forms that the caller accepts, within the bounds."""
    checked: dict[str, bytes] = {}
    bounds = shown.bounds
    for form, value in forms.items():
        data = _encoded(form, value, bounds.repr_chars)
        if form not in _FORMS or not data:
            continue
        if len(data) > bounds.display_bytes or not _CHECKS.get(str(form), bool)(data):
            shown.warn(f"a value of {len(data):,} bytes as {form} is over the bounds, and is not shown so")
            continue
        checked[str(form)] = data
    return checked


def _encoded(form: object, value: object, chars_max: int) -> bytes:
    """Return a form of a value as bytes; none if it is of another type."""
    is_text = form in {"text/plain", "text/html"}
    if not isinstance(value, str):
        return value if isinstance(value, bytes) and not is_text else b""
    if is_text:
        text = clean(value, chars_max) if form == "text/plain" else value
        return text.encode(errors="backslashreplace")
    try:
        return base64.b64decode(value)
    except (binascii.Error, ValueError):
        return b""


def _display_id(name: str) -> str:
    letters = (
        letter if letter.isascii() and (letter.isalnum() or letter in "_.-") else "_" for letter in name
    )
    return "".join(letters)[:DISPLAY_ID_CHARS_MAX]


def install(shows: Display) -> None:
    """Let IPython, once it is imported, show values by this session."""
    others = [finder for finder in sys.meta_path if not isinstance(finder, _IPythonFinder)]
    sys.meta_path[:] = [_IPythonFinder(shows), *others]

"""HTML that a session made, rebuilt from a closed list of elements, attributes and styles.

A notebook shows the HTML of its cells without further checks: a script there could start programs with the
rights of the user, an address could send data away, and a style could cover the page. The result has no
scripts, no addresses, no classes of the page, and nothing outside its own place.

It is no parser of the HTML standard, such as that of ``nh3``: these open formatting elements again in each
paragraph, and so take time in the square of a hostile text's length (0.5 s for 80 KB).
"""

from __future__ import annotations

import base64
import binascii
import html
import re
from typing import Final

from dios.client.plain_text import plain_lines
from dios.lib.sandbox.pictures import is_jpeg, is_png

_VOID: Final = frozenset({"br", "col", "hr", "img", "wbr"})
_ELEMENTS: Final = _VOID | frozenset(
    {
        "abbr",
        "b",
        "blockquote",
        "caption",
        "code",
        "colgroup",
        "dd",
        "del",
        "details",
        "div",
        "dl",
        "dt",
        "em",
        "figcaption",
        "figure",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "i",
        "ins",
        "kbd",
        "li",
        "mark",
        "meter",
        "ol",
        "p",
        "pre",
        "progress",
        "q",
        "s",
        "samp",
        "small",
        "span",
        "strong",
        "sub",
        "summary",
        "sup",
        "table",
        "tbody",
        "td",
        "tfoot",
        "th",
        "thead",
        "tr",
        "tt",
        "u",
        "ul",
        "var",
    }
)
_WITHOUT_TEXT: Final = frozenset(
    {
        "audio",
        "canvas",
        "embed",
        "head",
        "iframe",
        "math",
        "noembed",
        "noframes",
        "noscript",
        "object",
        "script",
        "select",
        "style",
        "svg",
        "template",
        "title",
        "video",
    }
)
"""The elements whose content is left out, too."""
_DEPTH_MAX: Final = 50
_STYLES_MAX: Final = 30

_NUMBER: Final = re.compile(r"[0-9]{1,4}(\.[0-9]{1,6})?%?")
_LENGTH: Final = r"[0-9]{1,4}(\.[0-9]{1,4})?(px|em|rem|pt|%)?"
_COLOUR: Final = r"(#[0-9a-f]{3,8}|[a-z]{1,20}|(rgb|hsl)a?\([0-9., %]{1,40}\))"
_STYLE: Final = re.compile(rf"({_LENGTH}|{_COLOUR})(\s+({_LENGTH}|{_COLOUR})){{0,5}}")
_STYLES: Final = frozenset(
    {
        "background",
        "background-color",
        "border",
        "border-bottom",
        "border-collapse",
        "border-color",
        "border-left",
        "border-radius",
        "border-right",
        "border-spacing",
        "border-style",
        "border-top",
        "border-width",
        "color",
        "font-style",
        "font-weight",
        "height",
        "max-width",
        "min-width",
        "padding",
        "padding-bottom",
        "padding-left",
        "padding-right",
        "padding-top",
        "text-align",
        "text-decoration",
        "vertical-align",
        "white-space",
        "width",
    }
)

_NUMBERS: Final = {
    "border": {"table"},
    "colspan": {"td", "th"},
    "height": {"img"},
    "max": {"meter", "progress"},
    "min": {"meter"},
    "rowspan": {"td", "th"},
    "span": {"col", "colgroup"},
    "start": {"ol"},
    "value": {"li", "meter", "progress"},
    "width": {"img"},
}
_TEXTS: Final = frozenset({"alt", "title"})

_TAG: Final = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]{0,20})(?=[\s/>])")
_END_OF_TAG: Final = re.compile(r"(?:[^\"'>]++|\"[^\"]*+\"|'[^']*+')*+>")
_ATTRIBUTE: Final = re.compile(
    r"(?<![\w-])([a-zA-Z][a-zA-Z-]{0,30}+)\s*+=\s*+(\"[^\"]*+\"|'[^']*+'|[^\s\"'<>=`]++)"
)
_PICTURE: Final = re.compile(r"data:image/(png|jpeg);base64,([A-Za-z0-9+/=\s]*)")


def harmless_html(text: str) -> str:
    """Return HTML with the permitted elements of ``text``, in time proportional to its length.

    All elements are closed. The text of other elements stays, except that of scripts, styles and the like.
    """
    parts: list[str] = []
    opened: list[str] = []
    place = 0
    while place < len(text):
        start = text.find("<", place)
        if start < 0:
            start = len(text)
        parts.append(_harmless_text(text[place:start]))
        place = _after_markup(text, start, parts, opened) if start < len(text) else start
    parts += (f"</{name}>" for name in reversed(opened))
    return "".join(parts)


def _after_markup(text: str, start: int, parts: list[str], opened: list[str]) -> int:
    """Add what a ``<`` begins, and return the place after it. Markup without an end takes the rest."""
    if text.startswith("<!--", start):
        return _after(text, "-->", start + 4)
    if text.startswith(("<!", "<?"), start):
        return _after(text, ">", start)
    tag = _TAG.match(text, start)
    if tag is None:
        parts.append("&lt;")
        return start + 1
    end = _END_OF_TAG.match(text, tag.end())
    if end is None:
        return len(text)
    name = tag[2].lower()
    if tag[1]:
        _close(name, parts, opened)
    elif name in _WITHOUT_TEXT:
        closing = re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE).search(text, end.end())
        return len(text) if closing is None else _after(text, ">", closing.end())
    elif name in _ELEMENTS and len(opened) < _DEPTH_MAX:
        attributes = _attributes(name, text[tag.end() : end.end() - 1])
        if name != "img" or " src=" in attributes:
            parts.append(f"<{name}{attributes}>")
            if name not in _VOID:
                opened.append(name)
    return end.end()


def _after(text: str, end: str, place: int) -> int:
    end_place = text.find(end, place)
    return len(text) if end_place < 0 else end_place + len(end)


def _close(name: str, parts: list[str], opened: list[str]) -> None:
    """Close the last open element of a name, and those in it."""
    if name in opened:
        while (last := opened.pop()) != name:
            parts.append(f"</{last}>")
        parts.append(f"</{name}>")


def _attributes(element: str, text: str) -> str:
    """Return the permitted attributes of an element."""
    known: dict[str, str] = {}
    for match in _ATTRIBUTE.finditer(text):
        name, value = match[1].lower(), _unescaped(match[2].strip("\"'"))
        if name not in known and (permitted := _permitted(element, name, value)):
            known[name] = permitted
    return "".join(f' {name}="{html.escape(value)}"' for name, value in known.items())


def _permitted(element: str, name: str, value: str) -> str:
    """Return the value of an attribute as far as it is permitted; empty if it is not."""
    if name in _TEXTS:
        return plain_lines(value)
    if name == "style":
        return _styles(value)
    if name == "class" and element == "table":
        return "dataframe" if "dataframe" in value.split() else ""
    if name == "src" and element == "img":
        return _picture(value)
    return value if element in _NUMBERS.get(name, ()) and _NUMBER.fullmatch(value) else ""


def _styles(text: str) -> str:
    """Return the permitted declarations of a style. None of their values is negative, or an address."""
    styles: list[str] = []
    for declaration in text.lower().split(";", _STYLES_MAX)[:_STYLES_MAX]:
        name, _, value = (part.strip() for part in declaration.partition(":"))
        if name in _STYLES and len(value) <= 100 and _STYLE.fullmatch(value):
            styles.append(f"{name}: {value}")
    return "; ".join(styles)


def _picture(address: str) -> str:
    """Return an address that contains a picture itself; empty for any other."""
    match = _PICTURE.fullmatch(address)
    if match is None:
        return ""
    try:
        data = base64.b64decode(match[2])
    except binascii.Error:
        return ""
    is_picture = is_png(data) if match[1] == "png" else is_jpeg(data)
    return f"data:image/{match[1]};base64,{base64.b64encode(data).decode()}" if is_picture else ""


def _harmless_text(text: str) -> str:
    # Spaces that keep words together are ordinary text, and a carriage return belongs to the end of a line.
    lines = _unescaped(text).replace("\r\n", "\n").split("\xa0")
    return "&#160;".join(html.escape(plain_lines(line)) for line in lines)


def _unescaped(text: str) -> str:
    try:
        return html.unescape(text)
    except ValueError:  # a number of thousands of digits
        return text

"""The elements of a page, for tests that hostile text adds none."""

from __future__ import annotations

from html.parser import HTMLParser


class Elements(HTMLParser):
    """The elements and the attributes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the tag and its attributes."""
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

"""The page "When something does not work" speaks of messages that DIOS prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
OF_PYTHON_OR_LINUX = {"No such file or directory", "Permission denied", "command not found"}


def quoted_messages() -> list[str]:
    """Return the messages that the page quotes as symptoms: code of several words that is no command."""
    symptoms = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| ")]
    quotes = [quote for symptom in symptoms for quote in re.findall(r"`([^`]+)`", symptom)]
    return [quote for quote in quotes if " " in quote and quote not in OF_PYTHON_OR_LINUX]


@pytest.mark.parametrize("message", quoted_messages())
def test_a_quoted_message_is_in_the_source(message: str) -> None:
    """A reader who searches the page for a message finds it; the parts around names and numbers count."""
    source = " ".join(
        re.sub(r'"\s*\n\s*f?"', "", path.read_text()) for path in sorted((ROOT / "dios").rglob("*.py"))
    )
    for part in re.split(r"…|\bn2\b|\d+", message):
        assert part.strip() in source, part

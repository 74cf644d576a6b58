"""Checks of a page with axe-core, which is no part of this repository: AXE_CORE is the path of axe.min.js."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from selenium.common.exceptions import JavascriptException

from tests.support.web.dashboard import WAIT_S, Pages

AXE: Final = Path(os.environ.get("AXE_CORE", ""))
WHY_NOT: Final = (
    "" if AXE.is_file() else "AXE_CORE is not the path of axe.min.js: npm install axe-core, as .ci/run does"
)
PHONE: Final = 360
_RUN: Final = """;
const done = arguments[0];
axe.run(document, {resultTypes: ["violations"]}).then(found => done(
  found.violations.map(one => `${one.id}: ${one.nodes.slice(0, 3).map(each => each.html.slice(0, 200))}`)
));
"""


def violations(pages: Pages) -> list[str]:
    """Return the rules that the open page breaks, in light and dark, with the first elements."""
    source = AXE.read_text()
    problems: list[str] = []
    for scheme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        pages.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        problems += [f"{scheme}: {problem}" for problem in _run(pages, source + _RUN)]
    pages.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    return problems


def _run(pages: Pages, script: str) -> list[str]:
    """Run an asynchronous script, again if the page loaded itself anew meanwhile."""
    end = time.monotonic() + WAIT_S
    while True:
        try:
            problems: list[str] = pages.driver.execute_async_script(script)
        except JavascriptException:
            if time.monotonic() > end:
                raise
        else:
            return problems


def overflow_on_phone(pages: Pages) -> int:
    """Return the number of pixels by which the open page stays wider than a phone."""
    size = {"width": PHONE, "height": 780, "deviceScaleFactor": 1, "mobile": False}
    pages.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    end = time.monotonic() + WAIT_S
    width = PHONE + 1
    while width > PHONE and time.monotonic() < end:  # charts take their new size some time after the page
        width = pages.driver.execute_script("return document.documentElement.scrollWidth")
    pages.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    return max(0, int(width) - PHONE)

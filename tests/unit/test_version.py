from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MINOR = re.compile(r"the newest minor version \((.*?)\)")
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_the_version_is_semantic_and_the_same_everywhere() -> None:
    """The files that state the version agree."""
    assert re.fullmatch(r"\d+\.\d+\.\d+", VERSION)
    chart = (ROOT / "cluster" / "helm" / "Chart.yaml").read_text()
    image = (ROOT / "cluster" / "Dockerfile").read_text()
    stated = {
        "label of the image": re.findall(r"^ARG VERSION=(.*)$", image, re.MULTILINE),
        "README.md": re.findall(r"alpha release \((.*?)\)", (ROOT / "README.md").read_text()),
        "version of the chart": re.findall(r"^version: (.*)$", chart, re.MULTILINE),
        "appVersion of the chart": re.findall(r'^appVersion: "(.*)"$', chart, re.MULTILINE),
    }
    policy = MINOR.findall((ROOT / "SECURITY.md").read_text())
    assert policy == [VERSION.rpartition(".")[0]]
    assert all(versions == [VERSION] for versions in stated.values()), stated

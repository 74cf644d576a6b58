"""The names by which this package is installed, in messages, documents and files of the tree."""

from __future__ import annotations

import ast
import json
import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from dios import installation
from dios.installation import DISTRIBUTION, FILE_NAME, extra_command
from tests.unit.test_tidy import python_files, tracked, tree_of

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = frozenset(PROJECT["optional-dependencies"])

METADATA = f"""Metadata-Version: 2.4
Name: {DISTRIBUTION}
Version: 9.8.7
Requires-Dist: trio>=0.27
Provides-Extra: cluster
Requires-Dist: numba>=0.61; extra == 'cluster'
Requires-Dist: numpy>=2.0; (python_version > "3") and extra == "cluster"
Provides-Extra: wasm
Requires-Dist: wasmtime>=50; extra == 'wasm'
"""
H11 = '{ name = "h11", specifier = ">=0.14" }'
PACKAGES = ["numba>=0.61", "numpy>=2.0"]
PIP = [sys.executable, "-m", "pip", "install"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment with an installation of this package, which the interpreter believes is its own."""
    described = tmp_path / "site" / f"{FILE_NAME}-9.8.7.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text(METADATA)
    (described / "INSTALLER").write_text("pip\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    return tmp_path


def came_from(place: Path, url: str, **more: object) -> None:
    """Note in the installation where it came from, as installers do."""
    text = json.dumps({"url": url, **more})
    (place / "site" / f"{FILE_NAME}-9.8.7.dist-info" / "direct_url.json").write_text(text)


def words(extra: str = "cluster") -> list[str]:
    """Return the words of the command that adds an extra."""
    return shlex.split(extra_command(extra))


@pytest.mark.usefixtures("place")
def test_an_installation_from_an_index_names_the_distribution() -> None:
    """Without a recorded place the extra comes from the index, by this interpreter's pip."""
    assert installation.version() == "9.8.7"
    assert words() == [*PIP, f"{DISTRIBUTION}[cluster]"]


def test_an_editable_clone_stays_editable(place: Path) -> None:
    """The command names the clone by its path, in which a space and brackets may be."""
    clone = place / "my clone"
    clone.mkdir()
    came_from(place, f"{clone.as_uri()}", dir_info={"editable": True})
    assert words() == [*PIP, "-e", f"{clone}[cluster]"]
    came_from(place, f"{clone.as_uri()}", dir_info={})
    assert words() == [*PIP, f"{clone}[cluster]"]


def test_a_wheel_is_named_while_it_exists(place: Path) -> None:
    """The packages of the extra are named instead if the wheel is gone."""
    wheel = place / f"{FILE_NAME}-9.8.7-py3-none-any.whl"
    wheel.touch()
    came_from(place, wheel.as_uri(), archive_info={})
    assert words() == [*PIP, f"{wheel}[cluster]"]
    wheel.unlink()
    assert words() == [*PIP, *PACKAGES]


def test_a_place_on_the_network_is_named(place: Path) -> None:
    """An archive by its URL, and a repository with the installed commit."""
    came_from(place, "https://files.example/d.whl", archive_info={})
    assert words() == [*PIP, f"{DISTRIBUTION}[cluster] @ https://files.example/d.whl"]
    came_from(place, "https://git.example/d", vcs_info={"vcs": "git", "commit_id": "12ab"})
    assert words() == [*PIP, f"{DISTRIBUTION}[cluster] @ git+https://git.example/d@12ab"]


def test_an_environment_without_pip_is_named_to_another_installer(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packages that uv installed are uv's; otherwise a pip of elsewhere gets this interpreter."""
    with monkeypatch.context() as patch:
        patch.setattr("importlib.util.find_spec", lambda _name: None)
        assert words()[:4] == ["pip", "--python", sys.executable, "install"]
    (place / "site" / f"{FILE_NAME}-9.8.7.dist-info" / "INSTALLER").write_text("uv")
    assert words() == ["uv", "pip", "install", "--python", sys.executable, f"{DISTRIBUTION}[cluster]"]


def test_pipx_gets_the_packages(place: Path) -> None:
    """They are injected into the environment of this name."""
    (place / "pipx_metadata.json").write_text("{}")
    assert words() == ["pipx", "inject", place.name, *PACKAGES]


@pytest.mark.parametrize(
    ("rows", "arguments"),
    [
        (f'{{ name = "{DISTRIBUTION}" }}', [f"{DISTRIBUTION}[cluster]"]),
        (
            f'{{ name = "{DISTRIBUTION}", extras = ["wasm"], path = "/d/w.whl" }}, {H11}',
            ["--with", "h11>=0.14", f"{DISTRIBUTION}[cluster,wasm] @ /d/w.whl"],
        ),
        (f'{{ name = "{DISTRIBUTION}", editable = "/d" }}', ["-e", "/d[cluster]"]),
        (f'{{ name = "{DISTRIBUTION}", specifier = "==1.0" }}', [f"{DISTRIBUTION}[cluster]==1.0"]),
        (
            f'{{ name = "{DISTRIBUTION}", git = "https://git.example/d?rev=v1" }}',
            [f"{DISTRIBUTION}[cluster] @ git+https://git.example/d@v1"],
        ),
    ],
)
def test_a_tool_of_uv_keeps_the_extras_and_packages_that_it_has(
    place: Path, rows: str, arguments: list[str]
) -> None:
    """A tool is installed anew, so the command repeats what the receipt records."""
    (place / "uv-receipt.toml").write_text(f'[tool]\npython = "3.12"\nrequirements = [{rows}]\n')
    assert words() == ["uv", "tool", "install", "--python", "3.12", *arguments]


def test_the_tree_that_was_never_installed_names_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the sources on the path alone, the command installs these sources."""
    monkeypatch.setattr(sys, "path", [])
    assert words()[-2:] == ["-e", f"{ROOT}[cluster]"]


# -- the tree -----------------------------------------------------------------------------------------
INSTALLS = re.compile(
    r"\b(?:pip|pipx|uvx?)3?[ '\",]+(?:\S+ ){0,3}?(?:install|download|wheel|inject|add|run|upgrade)"
    r"(?:[\s'\",]+-[^\s`]+)*(?:(?:[ '\",]+[^\s`]*[^\s`.;:#]){0,6}?[ '\",]+|\s+['\"]?)dios(?![-\w./(:*])"
)
"""A command line, in one string or many, that lets an installer take ``dios`` from an index."""
WITH_EXTRA = re.compile(r"(?<![-\w])dios\[[a-z]")
NAMED_EXTRAS = re.compile(rf"(?:{DISTRIBUTION}|'\.|/source|\.whl)\[([a-z0-9,]+)\]")


def offers_the_stranger(text: str) -> list[str]:
    """Return the places of a text at which the name ``dios`` is given to an installer."""
    return [match.group() for pattern in (INSTALLS, WITH_EXTRA) for match in pattern.finditer(text)]


def texts() -> dict[str, str]:
    """Return every file of the tree that is text and can have instructions, by its path."""
    chosen: dict[str, str] = {}
    for path in tracked():
        if path == Path(__file__) or path.suffix in {".png", ".pcap", ".bin", ".csv"}:
            continue
        data = path.read_bytes()
        if b"\0" not in data and (text := data.decode(errors="replace")).find("dios") >= 0:
            chosen[str(path.relative_to(ROOT))] = text
    return chosen


@pytest.mark.parametrize(
    "text",
    [
        "pip install dios",
        "run `pip install --upgrade dios`, then",
        "python -m pip install\n'dios[web]'",
        "python3 -m pip install --no-index --find-links /wheels dios==0.2.0",
        "pipx install dios",
        "uv tool install dios",
        "uv add dios",
        "pip download --dest wheels dios",
        '["pip", "install", "--quiet", "dios"]',
        "the image has dios[cluster]",
        "pip install numpy dios",
    ],
)
def test_instructions_for_the_stranger_are_recognised(text: str) -> None:
    """The guard below knows the forms in which an installer is given a name."""
    assert offers_the_stranger(text)


@pytest.mark.parametrize(
    "text",
    [
        f"pip install {DISTRIBUTION}",
        f"pip install --upgrade '{DISTRIBUTION}[cluster]'",
        "pip install ./dios_space-0.2.0-py3-none-any.whl",
        "pip install /opt/dios/wheels/x.whl",
        "pip install '.[mcp]'. Then dios mcp serves agents",
    ],
)
def test_instructions_for_this_package_are_not(text: str) -> None:
    """Its own name, paths and later sentences pass."""
    assert not offers_the_stranger(text)


def test_no_text_of_the_tree_installs_the_stranger() -> None:
    """No document, message, script or test gives an installer the name that belongs to another project."""
    offered = {name: places for name, text in texts().items() if (places := offers_the_stranger(text))}
    assert not offered, offered


def test_the_name_of_the_distribution_is_the_projects() -> None:
    """The code and pyproject.toml agree."""
    assert PROJECT["name"] == DISTRIBUTION


def test_every_extra_in_a_document_exists() -> None:
    """Instructions name extras of pyproject.toml."""
    unknown = {
        (name, extra)
        for name, text in texts().items()
        for match in NAMED_EXTRAS.finditer(text)
        for extra in match.group(1).split(",")
        if extra not in EXTRAS
    }
    assert not unknown, unknown


def test_every_extra_in_a_message_exists() -> None:
    """The functions that name an extra get a text of the program itself, which pyproject.toml has."""
    named: set[str] = set()
    for path in python_files("dios"):
        if not re.search("extra_command|needing_extra", path.read_text()):
            continue
        for node in ast.walk(tree_of(path)):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                continue
            if node.func.id not in {"extra_command", "needing_extra"}:
                continue
            argument = node.args[0]
            if isinstance(argument, ast.Constant):
                named.add(str(argument.value))
            else:
                assert path.name == "extras.py", f"{path}:{node.lineno} names an extra that no test can see"
    assert {"cluster", "wasm"} <= named <= EXTRAS

"""What a program may ask for, and when two requests are the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from dios.errors import InvalidError
from dios.lib.environments import installer
from dios.lib.environments.requests import checked, request_for
from dios.lib.environments.sources import PackageIndex, WheelFolder
from tests.support.wheels import make_wheel


@pytest.mark.parametrize(
    "text",
    [
        "pandas",
        "pandas==2.3",
        "pandas ~= 2.3",
        "pandas[excel,aws]>=2,<3",
        "ruamel.yaml!=0.17.*",
        "numpy===2.0+local",
        'tomli>=2; python_version < "3.11"',
    ],
)
def test_names_with_versions_are_requirements(text: str) -> None:
    """They are kept as they are, each once."""
    assert checked([text, text]) == (text,)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "--index-url=https://example.org",
        "-r requirements.txt",
        "./pandas",
        "/tmp/pandas",
        "pandas.whl/../x",
        "git+https://example.org/x",
        "https://example.org/x.whl",
        "pandas @ https://example.org/x.whl",
        "pandas @ file:///x",
        "pandas==2.3 --no-binary=:all:",
        "pandas\n--pre",
        "x" * 2000,
    ],
)
def test_what_could_run_code_or_change_the_installer_is_refused(text: str) -> None:
    """A path, a URL, an option and several of them in one text are no requirements."""
    with pytest.raises(InvalidError):
        checked([text])


def test_a_text_in_place_of_a_list_is_refused() -> None:
    """Its letters would be packages."""
    with pytest.raises(InvalidError, match='packages=\\["pandas"\\]'):
        checked("pandas")
    with pytest.raises(InvalidError, match="at least one"):
        checked([])


def test_requests_differ_by_packages_wheels_and_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same request has the same digest until a wheel of its folder, or a variable of pip, changes."""
    make_wheel(tmp_path, "fruit", "1.0", {"fruit.py": ""})
    digests = {request_for(["fruit"], WheelFolder(tmp_path)).digest for _ in range(2)}
    assert len(digests) == 1
    digests.add(request_for(["fruit==1.0"], WheelFolder(tmp_path)).digest)
    digests.add(request_for(["fruit"], PackageIndex()).digest)
    make_wheel(tmp_path, "fruit", "2.0", {"fruit.py": ""})
    digests.add(request_for(["fruit"], WheelFolder(tmp_path)).digest)
    monkeypatch.setenv("PIP_INDEX_URL", "https://example.org/simple")
    digests.add(request_for(["fruit"], PackageIndex()).digest)
    assert len(digests) == 5


def test_the_installer_never_builds_and_uses_no_index_next_to_wheels() -> None:
    """The command line of pip says so, and requirements are its last words."""
    words = installer.arguments(installer.Order("/build", ("fruit", "seed==1"), "/wheels", 1))
    assert words[-2:] == ["fruit", "seed==1"]
    assert words[words.index("--only-binary") + 1] == ":all:"
    assert {"--no-index", "--isolated"} <= set(words)
    assert words[words.index("--find-links") + 1] == "/wheels"
    online = installer.arguments(installer.Order("/build", ("fruit",), "", 1))
    assert not {"--no-index", "--isolated", "--find-links"} & set(online)

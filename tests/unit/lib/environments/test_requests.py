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
    """The command line of pip says so, and names the file of requirements."""
    words = installer.arguments(installer.Order("/build", "/wheels", 1))
    assert words[words.index("--requirement") + 1] == "/build/requirements.txt"
    assert words[words.index("--only-binary") + 1] == ":all:"
    assert {"--no-index", "--isolated"} <= set(words)
    assert words[words.index("--find-links") + 1] == "/wheels"
    online = installer.arguments(installer.Order("/build", "", 1))
    assert not {"--no-index", "--isolated", "--find-links"} & set(online)


LOCK = f"""
# made by a tool
--hash-free-option-is-none
fruit==1.0 \\
    --hash=sha256:{"a" * 64} \\
    --hash=sha256:{"b" * 64}
seed==0.1  # needed by fruit
"""


def test_a_file_of_requirements_is_read_with_its_digests(tmp_path: Path) -> None:
    """Comments and continued lines are understood; the digests go to pip with their requirement."""
    lock = tmp_path / "lock.txt"
    lock.write_text(LOCK.replace("--hash-free-option-is-none\n", ""), encoding="utf-8")
    digests = f"--hash=sha256:{'a' * 64} --hash=sha256:{'b' * 64}"
    assert checked([f"@{lock}", "pear"]) == (f"fruit==1.0 {digests}", "seed==0.1", "pear")
    request = request_for([f"@{lock}"], PackageIndex())
    assert str(request) == "fruit==1.0, seed==0.1"


@pytest.mark.parametrize(
    "text",
    [
        LOCK,
        "-e .",
        "--index-url https://example.org",
        "fruit --hash=sha256:12",
        f"fruit --hash=md5:{'a' * 64}",
        'fruit; python_version > "3" --global-option=x',
        "-r other.txt",
        "./fruit",
    ],
)
def test_a_file_has_requirements_alone(tmp_path: Path, text: str) -> None:
    """Options, paths and other files in it are refused, as they are in a program."""
    lock = tmp_path / "lock.txt"
    lock.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidError):
        checked([f"@{lock}"])


PROJECT = """
[project]
dependencies = ["fruit>=1"]
[project.optional-dependencies]
more = ["pear"]
[dependency-groups]
test = ["seed", {include-group = "base"}]
base = ["plum==1"]
loop = [{include-group = "loop"}]
odd = [1]
"""


def test_the_groups_of_a_project_are_read(tmp_path: Path) -> None:
    """Its dependencies, its extras, and its groups with those that they include."""
    path = tmp_path / "pyproject.toml"
    path.write_text(PROJECT, encoding="utf-8")
    assert checked([f"@{path}"]) == ("fruit>=1",)
    assert checked([f"@{path}:more"]) == ("pear",)
    assert checked([f"@{path}:test"]) == ("seed", "plum==1")
    for group, reason in (("none", "base, loop, more, odd, test"), ("loop", "itself"), ("odd", "texts")):
        with pytest.raises(InvalidError, match=reason):
            checked([f"@{path}:{group}"])
    path.write_text("[", encoding="utf-8")
    with pytest.raises(InvalidError, match="cannot read"):
        checked([f"@{path}"])
    with pytest.raises(InvalidError, match="No such file"):
        checked([f"@{tmp_path / 'missing.txt'}"])

"""The scripts in cluster/ tell ``dios-node`` what they should, and give no token away.

Not for: running them with a real node, which ``make docker`` does.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

CLUSTER = Path(__file__).resolve().parents[2] / "cluster"
SCRIPTS = sorted(CLUSTER.glob("*.sh"))
PORT = 7400


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_plain_shell(script: Path) -> None:
    """Every script parses as plain sh, stops at the first failure, and can be executed."""
    assert script.read_text().startswith("#!/bin/sh\n")
    assert "set -eu\n" in script.read_text()
    assert os.access(script, os.X_OK)
    subprocess.run(["sh", "-n", str(script)], check=True)


@pytest.fixture
def told(tmp_path: Path) -> Path:
    """A folder with a ``dios-node`` that writes down what it was told, and says a token."""
    program = tmp_path / "bin" / "dios-node"
    program.parent.mkdir()
    says = 'if [ "$1" = token ]; then echo \'{"token": "a-token"}\'; fi'
    program.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/told\n{says}\n')
    program.chmod(0o755)
    return tmp_path


def runs(script: str, folder: Path, *arguments: str, **more: str) -> list[str]:
    """What a script told ``dios-node``."""
    environment = {
        "PATH": f"{folder}/bin:{os.environ['PATH']}",
        "NODE_DATA": str(folder / "data"),
        "NODE_TOKEN_FOLDER": str(folder),
        "NODE_HOST": "here",
        **more,
    }
    subprocess.run(
        [str(CLUSTER / script), *arguments], env=environment, check=True, timeout=30, capture_output=True
    )
    lines = (folder / "told").read_text().splitlines()
    (folder / "told").unlink()
    return lines


def joined(folder: Path) -> None:
    """Make a data directory look like that of a member."""
    (folder / "data" / "identity").mkdir(parents=True)


def test_the_first_node_makes_the_cluster_once(told: Path) -> None:
    """A first node without an identity makes a cluster and starts; one that has its identity only starts."""
    first, second = runs("join.sh", told, "n1", "r1")
    assert first.startswith("init ")
    assert second.startswith("start ")
    assert "--advertise here:7400" in second
    joined(told)
    (only,) = runs("join.sh", told, "n1", "r1")
    assert only.startswith("start ")


def test_every_other_node_joins_once_with_a_file(told: Path) -> None:
    """A node that is told of a first one joins it with the name of a token's file; later it only starts."""
    token = told / "token"
    token.write_text("secret-text")
    (line,) = runs("join.sh", told, "n2", "r1", "n1", NODE_TOKEN_FILE=str(token))
    assert line.endswith(f"--join n1:{PORT} --token-file {token}")
    assert "secret-text" not in line
    joined(told)
    (line,) = runs("join.sh", told, "n2", "r1", "n1", NODE_TOKEN_FILE=str(token))
    assert "--join" not in line


def test_kernels_of_the_image_are_where_a_coordinator_finds_them(told: Path) -> None:
    """A node's start brings the image's kernels below its HOME, those of a new image in place of older ones.

    What the node itself compiled in between stays until then.
    """
    image, cache = told / "kernels", told / "data" / "home" / ".cache" / "numba"
    (image / "solvers").mkdir(parents=True)
    for made in ("first", "second"):
        (image / "made").write_text(made)
        (image / "solvers" / f"{made}.nbc").write_text("code")
        runs("join.sh", told, "n1", "r1", NODE_KERNELS=str(image))
        (cache / "solvers" / "own.nbc").write_text("code")
        runs("join.sh", told, "n1", "r1", NODE_KERNELS=str(image))
        assert {path.name for path in (cache / "solvers").iterdir()} == {f"{made}.nbc", "own.nbc"}
        (image / "solvers" / f"{made}.nbc").unlink()
    assert (told / "data" / "home").stat().st_mode & 0o777 == 0o700


def test_nodes_find_the_kernels_by_their_home(told: Path) -> None:
    """HOME, all that a coordinator gets of a node's environment, is where the kernels are."""
    says = f'#!/bin/sh\necho "$HOME" >>{told}/told\n'
    (told / "bin" / "dios-node").write_text(says)
    (told / "kernels").mkdir()
    (told / "kernels" / "made").write_text("once")
    joined(told)
    homes = runs("join.sh", told, "n1", "r1", NODE_KERNELS=str(told / "kernels"), HOME="/elsewhere")
    assert homes == [str(told / "data" / "home")]


def test_tokens_are_for_the_nodes_user_only(told: Path) -> None:
    """Each name gets a token in a file that nobody else reads."""
    assert len(runs("tokens.sh", told, "n2", "n3")) == 2
    for name in ("n2", "n3"):
        assert (told / name).read_text() == "a-token\n"
        assert (told / name).stat().st_mode & 0o777 == 0o600

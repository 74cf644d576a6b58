"""The scripts in cluster/ tell ``dios-node`` what they should, and give no token away.

Not for: running them with a real node, which ``make docker`` does.
"""

from __future__ import annotations

import hashlib
import os
import re
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
    says = 'if [ "$1" = invite ]; then echo \'{"token": "a-token"}\'; fi'
    program.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/told\n{says}\n')
    program.chmod(0o755)
    return tmp_path


PYTHON_WITH_VENV = """#!/bin/sh
echo "$@" >>FOLDER/told
case "$*" in
  *"-m venv"*) mkdir -p "$3/bin" && cp "$0" "$3/bin/pip" ;;
  wheel*) mkdir -p "$6" && echo a wheel >"$6/dios-1.whl" ;;
  *) echo "$@" | sed -n 's/.*--requirement //p' | xargs -r cat >>FOLDER/requirements ;;
esac
"""


def test_the_image_is_made_of_the_wheels_that_one_script_names(tmp_path: Path) -> None:
    """The script asks Python for wheels of this tree with the extras of the image, and of the lister.

    Each of them is one of the lock, and is checked before it is unpacked.
    """
    python = tmp_path / "python"
    python.write_text(PYTHON_WITH_VENV.replace("FOLDER", str(tmp_path)))
    python.chmod(0o755)
    old = tmp_path / "wheels" / "image" / "old.whl"
    old.parent.mkdir(parents=True)
    old.touch()
    subprocess.run([str(CLUSTER / "wheels.sh"), str(python), str(tmp_path / "wheels")], check=True)
    _, pip, builder, own, image, lister = (tmp_path / "told").read_text().splitlines()
    own_lines, of_image = (tmp_path / "requirements").read_text().rsplit("\n", 2)[:2]
    assert re.fullmatch(r"pip==\S+( \\\n +--hash=sha256:[0-9a-f]{64})+", own_lines)
    digest = hashlib.sha256(b"a wheel\n").hexdigest()
    assert re.fullmatch(rf".*/image/dios-1\.whl\[[a-z,]+\] --hash=sha256:{digest}", of_image)
    assert Path(own.split()[-1]).resolve() == CLUSTER.parent
    assert own.startswith("wheel --no-index --no-deps --no-build-isolation ")
    assert lister.endswith(" cyclonedx-bom")
    for line in (pip, builder, image, lister):
        assert " --require-hashes " in line
    for line in (builder, image, lister):
        assert f" --only-binary=:all: --constraint {CLUSTER.parent}/dev.lock " in line
    assert not old.exists()


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
    assert line.endswith(f"--join n1:{PORT} --invitation-file {token}")
    assert "secret-text" not in line
    joined(told)
    (line,) = runs("join.sh", told, "n2", "r1", "n1", NODE_TOKEN_FILE=str(token))
    assert "--join" not in line


def test_kernels_are_kept_with_the_nodes_data(told: Path) -> None:
    """HOME, all that a coordinator gets of a node's environment, is a private folder on the volume."""
    (told / "bin" / "dios-node").write_text(f'#!/bin/sh\necho "$HOME" >>{told}/told\n')
    joined(told)
    home = told / "data" / "home"
    assert runs("join.sh", told, "n1", "r1", HOME="/elsewhere") == [str(home)]
    assert home.stat().st_mode & 0o777 == 0o700


def test_tokens_are_for_the_nodes_user_only(told: Path) -> None:
    """Each name gets a token in a file that nobody else reads."""
    assert len(runs("tokens.sh", told, "n2", "n3")) == 2
    for name in ("n2", "n3"):
        assert (told / name).read_text() == "a-token\n"
        assert (told / name).stat().st_mode & 0o777 == 0o600

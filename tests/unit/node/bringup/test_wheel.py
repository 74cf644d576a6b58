from __future__ import annotations

import csv
import io
import subprocess
import sys
import zipfile
from pathlib import Path

from dios.node.bringup import wheel


def test_the_wheel_has_this_version_and_pip_takes_it(tmp_path: Path) -> None:
    """The wheel of the running version can be installed; every file is in its record; twice is the same."""
    built = wheel.of_running_version()
    assert built == wheel.of_running_version()
    archive = zipfile.ZipFile(io.BytesIO(built.data))
    record = next(name for name in archive.namelist() if name.endswith("/RECORD"))
    rows = list(csv.reader(io.StringIO(archive.read(record).decode())))
    assert [row[0] for row in rows] == archive.namelist()
    (tmp_path / built.name).write_bytes(built.data)
    words = [
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-compile",
        "--target",
        str(tmp_path / "there"),
    ]
    subprocess.run([sys.executable, "-m", "pip", *words, str(tmp_path / built.name)], check=True)
    there = tmp_path / "there"
    assert (there / "dios" / "py.typed").exists()
    assert (there / "dios" / "node" / "doctor" / "threat-model.md").exists()
    assert (there / "bin" / "dios-node").exists()
    source = Path(wheel.__file__).parents[2]
    own = {path.relative_to(source) for path in source.rglob("*.py")}
    assert {path.relative_to(there / "dios") for path in (there / "dios").rglob("*.py")} == own

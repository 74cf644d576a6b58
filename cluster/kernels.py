"""Compiles the kernels of a coordinator while the image is built; Numba keeps them in NUMBA_CACHE_DIR."""  # noqa: INP001 - the image runs it by its path

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from dios.firmament.coordinator.scheduler_service import open_office
from dios.firmament.coordinator.warm_up import rehearse
from dios.firmament.knowledge.knowledge_base import KnowledgeBase

MODELS = ("spread", "coco")
"""Their networks have all shapes; the other models need no kernel more."""


def main(folder: Path) -> None:
    """Compile, and name what came out: ``made`` tells one image's kernels from another's."""
    open_office("spread", "image", "centralised", KnowledgeBase("image", 1))
    for model in MODELS:
        rehearse(model)
        sys.stdout.write(f"{model}: {len(list(folder.rglob('*.nbc')))} kernels\n")
    kernels = sorted(path for path in folder.rglob("*") if path.is_file())
    if not kernels:
        sys.exit(f"no kernel was kept in {folder}")
    digest = hashlib.sha256()
    for path in kernels:
        digest.update(path.read_bytes())
    (folder / "made").write_text(f"{digest.hexdigest()}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

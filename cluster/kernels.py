"""Compile the kernels of a coordinator while the image is built; Numba caches them in NUMBA_CACHE_DIR."""  # noqa: INP001 - the image runs it by its path

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from dios.firmament.coordinator import compile_kernels, kernel_compilation


def main(folder: Path) -> None:
    """Compile all kernels into a folder, and write a digest of them to its file ``made``.

    ``join.sh`` compares the digest with that of the node's copy, and copies the kernels after a new image.
    """
    compile_kernels.compile_all(lambda compiled, total: print(f"{compiled} of {total} kernels", flush=True))  # noqa: T201 - the build's output
    kernel_compilation.mark_complete(folder)
    kernels = sorted(path for path in folder.rglob("*") if path.is_file())
    if not any(path.suffix == ".nbc" for path in kernels):
        sys.exit(f"no kernel was kept in {folder}: is NUMBA_CACHE_DIR set to it?")
    digest = hashlib.sha256()
    for path in kernels:
        digest.update(path.read_bytes())
    (folder / "made").write_text(f"{digest.hexdigest()}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

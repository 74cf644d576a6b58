"""A store of backups in memory, for tests that change what it has."""

from __future__ import annotations


class MemoryTarget:
    """A target whose files are a dict."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.place = "memory of a test"

    def read(self, path: str, size_max: int) -> bytes:
        """Return a whole file."""
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path][: size_max + 1]

    def write(self, path: str, data: bytes) -> None:
        """Store a new file."""
        if path in self.files:
            raise FileExistsError(path)
        self.files[path] = data

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder."""
        return [path.partition("/")[2] for path in self.files if path.startswith(f"{folder}/")]

    def remove(self, path: str) -> None:
        """Remove a file."""
        if path not in self.files:
            raise FileNotFoundError(path)
        del self.files[path]

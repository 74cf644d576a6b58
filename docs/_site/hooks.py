"""The hooks of ``make site``: pages that the documents link to outside of ``docs`` become part of the site.

Results of benchmarks and the documents of the root become pages; source files become text files. A link to
a folder leads to a page that lists the folder. So every link of the site works without a network.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"
ROOT_PAGES: Final = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
RESULTS: Final = "labs/benchmarks/results"
LINK: Final = re.compile(r'(\]\(|^\[[^\]]+\]: |\b(?:src|srcset)=")([^)\s"#]+)', re.MULTILINE)
LOADED: Final = re.compile(r"<(?:script|link|img)\b[^>]*\b(?:src|href)=\"?https?://[^>]*>")
FENCE_MARK: Final = "\0"
FENCE: Final = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
ORIGINS: Final[dict[str, Path]] = {}
"""The places in the repository of pages that are not below ``docs``, by their places in the site."""


def site_path(path: Path) -> str:
    """Return the path within the site's sources of a file or folder of the repository."""
    if path.is_relative_to(DOCS):
        inside = path.relative_to(DOCS).as_posix()
        return posixpath.join(inside, "index.md") if path.is_dir() else inside
    inside = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        return posixpath.join(inside, "index.md")
    return inside.lower() if inside in ROOT_PAGES else f"{inside}.txt" if shown_as_text(path) else inside


def shown_as_text(path: Path) -> bool:
    """Return True if a browser gets the file as plain text: source code, settings and the licence."""
    return path.suffix not in {".md", ".png", ".svg", ".json"}


def linked(text: str, folder: Path) -> list[Path]:
    """Return the files and folders of the repository that a document in ``folder`` links to."""
    found = (folder / match[2] for match in LINK.finditer(FENCE.sub("", text)) if "://" not in match[2])
    return [path.resolve() for path in found if path.exists()]


def listing(folder: Path) -> str:
    """Return a page that lists the files of a folder."""
    lines = [f"# {folder.relative_to(ROOT)}", ""]
    for path in sorted(folder.iterdir()):
        if path.name.startswith(("__", ".")) or path.suffix == ".pyc":
            continue
        lines.append(f"- [{path.name}]({path.name})")
    return "\n".join(lines) + "\n"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add everything that the documents link to, and what those pages link to in turn."""
    todo = [ROOT / name for name in ROOT_PAGES]
    todo += (ROOT / RESULTS).rglob("*.md")
    todo += [target for page in DOCS.rglob("*.md") for target in linked(page.read_text(), page.parent)]
    seen: set[Path] = set()
    while todo:
        path = todo.pop()
        if path in seen or not path.is_relative_to(ROOT):
            continue
        seen.add(path)
        target = site_path(path)
        if files.get_file_from_path(target) is not None:
            continue
        ORIGINS[target] = path / "index.md" if path.is_dir() else path
        if path.is_dir():
            text = listing(path)
            todo += linked(text, path)
            todo += [p for p in path.iterdir() if p.is_dir() and not p.name.startswith(("__", "."))]
            files.append(File.generated(config, target, content=text))
        elif path.suffix == ".md":
            todo += linked(path.read_text(), path.parent)
            files.append(File.generated(config, target, content=path.read_text()))
        else:
            files.append(File.generated(config, target, content=path.read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point the links of a page at the places that their targets have in the site."""
    del config, files
    origin = ORIGINS.get(page.file.src_uri, DOCS / page.file.src_uri)
    here = posixpath.dirname(page.file.src_uri)

    def moved(match: re.Match[str]) -> str:
        target = (origin.parent / match[2]).resolve()
        if "://" in match[2] or not target.exists() or not target.is_relative_to(ROOT):
            return match[0]
        return match[1] + posixpath.relpath(site_path(target), here or ".")

    fences = FENCE.findall(markdown)
    prose = LINK.sub(moved, FENCE.sub(FENCE_MARK, markdown))
    for fence in fences:
        prose = prose.replace(FENCE_MARK, fence, 1)
    return prose


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Refuse a page that would load something from a network."""
    del config
    loaded = LOADED.search(output)
    if loaded:
        place = page.file.src_uri
        raise PluginError(f"{place} would load {loaded[0]} from a network; put a copy into docs/assets")
    return output

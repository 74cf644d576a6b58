"""The installation that runs: its name on package indexes, its version, and the command that adds an extra.

The name on indexes differs from that of the import package, because ``dios`` belongs to another project
there. Daemons and tasks load this module, so it imports nothing before a function is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

DISTRIBUTION: Final = "dios-space"
FILE_NAME: Final = DISTRIBUTION.replace("-", "_")
"""The name as the files of a package index and the folders of an environment spell it."""


def version() -> str:
    """Return the version of the installed package, which is read from its files."""
    from importlib import metadata  # noqa: PLC0415 - see the top of this module

    return metadata.version(DISTRIBUTION)


def source(extras: str) -> list[str]:
    """Return the arguments with which pip installs this package with extras from where it came.

    It came from a clone, a wheel, a repository or an index. The list is empty if that place is gone.
    """
    import json  # noqa: PLC0415 - see the top of this module
    from importlib import metadata  # noqa: PLC0415 - the same
    from pathlib import Path  # noqa: PLC0415 - the same
    from urllib.parse import unquote, urlsplit  # noqa: PLC0415 - the same

    marked = f"[{extras}]" if extras else ""
    try:
        text = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        clone = Path(__file__).parents[1]
        return ["-e", f"{clone}{marked}"] if (clone / "pyproject.toml").exists() else []
    if text is None:
        return [f"{DISTRIBUTION}{marked}"]
    place = json.loads(text)
    if urlsplit(place["url"]).scheme == "file":
        path = unquote(urlsplit(place["url"]).path)
        editable = ["-e"] if place.get("dir_info", {}).get("editable") else []
        return [*editable, f"{path}{marked}"] if Path(path).exists() else []
    if "vcs_info" in place:
        repository = place["vcs_info"]
        return [f"{DISTRIBUTION}{marked} @ {repository['vcs']}+{place['url']}@{repository['commit_id']}"]
    return [f"{DISTRIBUTION}{marked} @ {place['url']}"]


def extra_command(extra: str) -> str:
    """Return the command line that adds an extra to this installation, as its installer wants it."""
    import shlex  # noqa: PLC0415 - see the top of this module
    import sys  # noqa: PLC0415 - the same
    from pathlib import Path  # noqa: PLC0415 - the same

    prefix = Path(sys.prefix)
    if (receipt := prefix / "uv-receipt.toml").exists():
        words = _uv_tool(receipt.read_text(), extra)
    elif (prefix / "pipx_metadata.json").exists():
        # By the names of packages: some versions of pipx do not inject a package into itself.
        words = ["pipx", "inject", prefix.name, *_packages(extra)]
    else:
        words = [*_installer(), *(source(extra) or _packages(extra))]
    return shlex.join(words)


def install_command(package: str) -> str:
    """Return the command line that installs a package into this environment."""
    import shlex  # noqa: PLC0415 - see the top of this module

    return shlex.join([*_installer(), package])


def _installer() -> list[str]:
    """Return the beginning of a command that installs into this environment."""
    import sys  # noqa: PLC0415 - see the top of this module
    from importlib import metadata, util  # noqa: PLC0415 - the same

    try:
        by = (metadata.distribution(DISTRIBUTION).read_text("INSTALLER") or "").strip()
    except metadata.PackageNotFoundError:
        by = ""
    if by == "uv":
        return ["uv", "pip", "install", "--python", sys.executable]
    if util.find_spec("pip") is None:
        return ["pip", "--python", sys.executable, "install"]
    return [sys.executable, "-m", "pip", "install"]


def _packages(extra: str) -> list[str]:
    """Return the requirements that an extra adds, without their markers."""
    import re  # noqa: PLC0415 - see the top of this module
    from importlib import metadata  # noqa: PLC0415 - the same

    try:
        rows = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return [f"{DISTRIBUTION}[{extra}]"]
    of_extra = re.compile(rf"\bextra\s*==\s*['\"]{re.escape(extra)}['\"]")
    return [row.partition(";")[0].strip() for row in rows if of_extra.search(row.partition(";")[2])]


def _uv_tool(receipt: str, extra: str) -> list[str]:
    """Return the command of uv that installs the tool again, with the extras and packages that it has."""
    import tomllib  # noqa: PLC0415 - see the top of this module

    tool = tomllib.loads(receipt)["tool"]
    words = ["uv", "tool", "install"]
    words += ["--python", str(tool["python"])] if "python" in tool else []
    own: list[str] = []
    for row in tool["requirements"]:
        if row["name"] != DISTRIBUTION:
            words += ["--with", _uv_requirement(row, row.get("extras", []))]
            continue
        extras = sorted({*row.get("extras", []), extra})
        if "editable" in row:
            own = ["-e", f"{row['editable']}[{','.join(extras)}]"]
        else:
            own = [_uv_requirement(row, extras)]
    return [*words, *own]


def _uv_requirement(row: Mapping[str, str], extras: list[str]) -> str:
    """Return a requirement of a receipt as text."""
    import re  # noqa: PLC0415 - see the top of this module

    named = row["name"] + (f"[{','.join(extras)}]" if extras else "")
    if "git" in row:
        return f"{named} @ git+{re.sub('[?](rev|tag|branch)=', '@', row['git'])}"
    places = [row[key] for key in ("path", "directory", "editable", "url") if key in row]
    return f"{named} @ {places[0]}" if places else named + row.get("specifier", "")

"""The keyring: a user's names of groups and objects under aliases, in a file that only the user can read.

The names are capabilities: without the file they are lost.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

from dios.client.locate import config_directory
from dios.client.written_files import make_folder, naming, sync_folder
from dios.errors import ExistsError, InvalidError, LimitError, NotPermittedError
from dios.ids import Name
from dios.limits import GROUPS_PER_CALL_MAX, GROUPS_PRESENTED_MAX, KEYRING_NAMES_MAX
from dios.trusted_files import require_trusted
from dios.wire.nametext import PREFIX, format_name, parse_name

Section: TypeAlias = Literal["groups", "objects"]

_SECTIONS: Final[tuple[Section, ...]] = ("groups", "objects")
_ALIAS: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/@+-]{0,127}")
_HEADER: Final = "# Names are secrets: a person who reads this file can use what they name.\n\n"
# The last line of a file, if a writer was interrupted in it: any part of a line as ``_line`` makes it.
_LINE_BEGUN: Final = re.compile(
    r'[a-z]{1,7}\.?|(groups|objects)\."[A-Za-z0-9._/@+-]*("( (=( ("[a-z0-9]*)?)?)?)?)?'
)


def default_path() -> Path:
    """Return the path in DIOS_KEYRING, else keyring.toml in the configuration directory."""
    chosen = os.environ.get("DIOS_KEYRING", "")
    return Path(chosen).expanduser() if chosen else config_directory() / "keyring.toml"


def check_alias(alias: str) -> None:
    """Raise InvalidError if ``alias`` cannot be an alias."""
    if not _ALIAS.fullmatch(alias) or alias.lower().startswith(PREFIX):
        raise InvalidError(
            f"{alias!r} cannot be an alias. Use at most 128 letters, digits and . _ / @ + -,"
            f" and begin with a letter or digit and not with {PREFIX}."
        )


def check_group_alias(alias: str) -> None:
    """Raise InvalidError if a new group cannot have ``alias``: a "/" would end it in a path GROUP/FILE."""
    check_alias(alias)
    if "/" in alias:
        raise InvalidError(
            f"{alias!r} cannot be the alias of a group, because the / begins the path of a file in it. Use "
            f"another one, like {alias.replace('/', '-')}."
        )


class Keyring:
    """The aliases of one user, as stored in the file.

    ``groups`` are presented when a program connects, or when it needs them; ``objects`` are other names.
    Changes are written at once, and changes of other processes are kept.
    """

    def __init__(self, path: Path, sections: Mapping[Section, Mapping[str, Name]] | None = None) -> None:
        self.path: Final = path
        self._sections: dict[Section, _Entries] = {
            section: _Entries({alias: format_name(name) for alias, name in sections[section].items()})
            if sections
            else _Entries({})
            for section in _SECTIONS
        }
        # The file whose content ``_sections`` is, if one line at its end adds a name; None for any other.
        self._extensible: _File | None = None

    def __repr__(self) -> str:
        return f"<Keyring of {len(self.groups)} groups and {len(self.objects)} objects>"

    @classmethod
    def load(cls, path: Path | None = None) -> Keyring:
        """Read the keyring; a missing file is an empty keyring.

        Raises NotPermittedError if others may read or change the file, InvalidError if it is damaged. A
        mistyped name is an InvalidError when it is used.
        """
        keyring = cls(default_path() if path is None else path)
        keyring._sections, keyring._extensible = _read(keyring.path)
        return keyring

    @property
    def groups(self) -> Mapping[str, Name]:
        """Return the names of groups, in the order in which they were added."""
        return self._sections["groups"]

    @property
    def objects(self) -> Mapping[str, Name]:
        """Return the names of other objects."""
        return self._sections["objects"]

    def presented(self) -> tuple[Name, ...]:
        """Return the groups for a Hello: all, or the newest if one message cannot hold all."""
        return self._newest(0, GROUPS_PER_CALL_MAX)

    def presented_later(self) -> tuple[Name, ...]:
        """Return the groups that follow those for a Hello, newest first, for when a lookup needs them."""
        return self._newest(GROUPS_PER_CALL_MAX, GROUPS_PRESENTED_MAX)

    def _newest(self, start: int, end: int) -> tuple[Name, ...]:
        entries = self._sections["groups"]
        newest: dict[str, str] = {}
        for alias, text in reversed(entries.texts.items()):
            newest.setdefault(text, alias)
            if len(newest) == end:
                break
        return tuple(entries[alias] for alias in islice(newest.values(), start, None))

    @property
    def not_presented(self) -> int:
        """Return the number of groups that are presented only when a program names them."""
        return max(0, len(set(self._sections["groups"].texts.values())) - GROUPS_PRESENTED_MAX)

    def add(self, alias: str, name: Name, *, section: Section = "groups", replace: bool = False) -> None:
        """Store ``name`` under ``alias``; ExistsError if the alias is used for another name."""
        check_alias(alias)
        with self._locked():
            texts = self._sections[section].texts
            text, known = format_name(name), texts.get(alias)
            if known == text:
                return
            if known is not None and not replace:
                raise ExistsError(f"the keyring has {alias!r} already. Choose another alias or remove it.")
            if len(texts) >= KEYRING_NAMES_MAX and known is None:
                raise LimitError(f"the keyring is full: it has {KEYRING_NAMES_MAX} {section}. Remove some.")
            sections = self._sections | {section: _Entries(texts | {alias: text})}
            if known is None and self._extensible is not None:
                self._extensible = _append(self.path, _line(section, alias, text))
            else:
                self._extensible = _write(self.path, sections)
            self._sections = sections

    def remove(self, alias: str, *, section: Section = "groups") -> None:
        """Remove an alias; InvalidError if there is none. The named object stays, perhaps unreachable."""
        with self._locked():
            texts = dict(self._sections[section].texts)
            if texts.pop(alias, None) is None:
                raise InvalidError(f"the keyring has no {alias!r} among its {section}")
            sections = self._sections | {section: _Entries(texts)}
            self._extensible = _write(self.path, sections)
            self._sections = sections

    def name_of(self, text: str, *, section: Section = "groups") -> Name:
        """Return the name for ``text``: an alias, or a name as text."""
        known = self._sections[section].get(text)
        if known is not None:
            return known
        if text.strip().lower().startswith(PREFIX):
            return parse_name(text)
        advice = ". `dios group ls` lists your groups." if section == "groups" else ""
        raise InvalidError(f"the keyring knows no {section[:-1]} {text!r}{advice}")

    def alias_of(self, name: bytes, *, section: Section = "groups") -> str | None:
        """Return the alias of ``name``, or None."""
        text = format_name(name)
        return next((alias for alias, known in self._sections[section].texts.items() if known == text), None)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Let no other process change the file during the body, and have its content as it is now."""
        make_folder(self.path.parent)
        require_trusted(self.path.parent, "the keyring's folder")
        lock = os.open(
            self.path.with_name(self.path.name + ".lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600
        )
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self._extensible is None or self._extensible != _found_at(self.path):
                self._sections, self._extensible = _read(self.path)
            yield
        finally:
            os.close(lock)


class _File(NamedTuple):
    """A file in one of its states: it is compared, to learn if another process has changed it since."""

    device: int
    inode: int
    size: int
    changed_ns: int
    mode: int


def _file_of(status: os.stat_result) -> _File:
    return _File(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode)


def _found_at(path: Path) -> _File | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return _file_of(status)


class _Entries(Mapping[str, Name]):
    """The names of one section by alias, each read from its text when it is used: that takes some time."""

    def __init__(self, texts: dict[str, str]) -> None:
        self.texts: Final = texts

    def __getitem__(self, alias: str) -> Name:
        text = self.texts[alias]
        try:
            return parse_name(text)
        except InvalidError as error:
            raise InvalidError(f"the keyring is damaged at {alias!r}: {error}") from None

    def __contains__(self, alias: object) -> bool:
        return alias in self.texts

    def __iter__(self) -> Iterator[str]:
        return iter(self.texts)

    def __len__(self) -> int:
        return len(self.texts)


def _read(path: Path) -> tuple[dict[Section, _Entries], _File | None]:
    """Return the content, and the file if a line may be added to it as it is."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_mode & 0o077:
                raise NotPermittedError(f"others may read the keyring. Run: chmod 600 {path}")
            require_trusted(path, "the keyring")
            content = file.read()
        text = _without_line_begun(content.decode())
        sections = _parsed_as_written(text)
        if sections is None:
            return _parsed(text, path), None
        return sections, _file_of(status) if len(text) == len(content) == status.st_size else None
    except FileNotFoundError:
        return {section: _Entries({}) for section in _SECTIONS}, None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidError(f"the keyring {path} is damaged: {error}") from None


def _without_line_begun(text: str) -> str:
    """Return the file without a last line that has no end: it is being added, or its writer was stopped."""
    before, newline, last = text.rpartition("\n")
    return before + newline if _LINE_BEGUN.fullmatch(last) else text


def _parsed(text: str, path: Path) -> dict[Section, _Entries]:
    """Read any TOML file."""
    sections: dict[Section, _Entries] = {}
    values = tomllib.loads(text)
    for section in _SECTIONS:
        entries = values.get(section, {})
        if not isinstance(entries, dict):
            raise InvalidError(f"the keyring {path} is damaged: {section} is not a table")
        texts = {}
        for alias, written in entries.items():
            if not isinstance(written, str):
                raise InvalidError(f"the keyring {path} is damaged: {alias!r} has no name as text")
            texts[alias] = format_name(parse_name(written))
        sections[section] = _Entries(texts)
    return sections


def _parsed_as_written(text: str) -> dict[Section, _Entries] | None:
    """Read a file as ``_write`` and ``_append`` leave it, much faster; None for any other."""
    if not text.startswith(_HEADER) or not text.endswith("\n"):
        return None
    body = text[len(_HEADER) - 1 : -1]
    parts = body.split('"')
    keys, aliases, texts = parts[:-1:4], parts[1::4], parts[3::4]
    as_written = (
        len(parts) % 4 == 1
        and parts[-1] in {"", "\n"}
        and set(keys) <= {f"\n{section}." for section in _SECTIONS}
        and set(parts[2::4]) <= {" = "}
        and "\\" not in text
        # Most aliases have small letters only, like the names: one look at all of it is the quickest.
        and (body == body.lower() or "".join(texts).islower())
    )
    if not as_written:
        return None
    sections: dict[Section, _Entries]
    if len(set(keys)) == 1:
        sections = {section: _Entries({}) for section in _SECTIONS}
        only = next(section for section in _SECTIONS if keys[0] == f"\n{section}.")
        sections[only] = _Entries(dict(zip(aliases, texts, strict=True)))
        return sections if len(sections[only]) == len(aliases) else None
    sections = {}
    for section in _SECTIONS:
        key = f"\n{section}."
        sections[section] = _Entries(
            {alias: name for begin, alias, name in zip(keys, aliases, texts, strict=True) if begin == key}
        )
    return sections if sum(map(len, sections.values())) == len(aliases) else None


def _line(section: Section, alias: str, text: str) -> str:
    return f'{section}."{alias}" = "{text}"\n'


def _append(path: Path, line: str) -> _File:
    """Add a line at the end of the file. A crash leaves a part of it at most, which ``_read`` leaves out."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        try:
            rest = line.encode()
            with naming(path):
                while rest:
                    rest = rest[os.write(fd, rest) :]
                os.fdatasync(fd)
        except BaseException:
            os.ftruncate(fd, size)
            raise
        return _file_of(os.fstat(fd))
    finally:
        os.close(fd)


def _write(path: Path, sections: Mapping[Section, _Entries]) -> _File:
    """Replace the file in one step, so that no reader and no crash ever finds an incomplete one."""
    lines = [_HEADER]
    for section in _SECTIONS:
        lines += [_line(section, alias, name) for alias, name in sections[section].texts.items()]
    # Written next to the file, under the lock: an existing file of that name is left over from a crash.
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    fd = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        with naming(path), os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write("".join(lines))
            file.flush()
            os.fsync(file.fileno())
            written = _file_of(os.fstat(file.fileno()))
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    # A name that is lost with the power makes its group unreachable.
    sync_folder(path.parent)
    return written


class Presented(NamedTuple):
    """The groups of a session: those of its Hello, and a function that returns those for later."""

    first: tuple[Name, ...]
    later: Callable[[], tuple[Name, ...]] = tuple


def presented_groups(groups: Iterable[str | bytes] | None) -> Presented:
    """Return ``groups``, which are names as bytes or text, or aliases; by default all of the keyring."""
    if groups is None:
        own = Keyring.load()
        return Presented(own.presented(), own.presented_later)
    keyring: Keyring | None = None
    names: list[Name] = []
    for item in groups:
        if isinstance(item, bytes):
            names.append(Name(item))
            continue
        if keyring is None:
            keyring = Keyring.load()
        names.append(keyring.name_of(item))
    if len(names) > GROUPS_PER_CALL_MAX:
        raise InvalidError(
            f"{len(names)} groups are too many: a connection begins with {GROUPS_PER_CALL_MAX} at most."
            " Connect with some of them, and get the others with node.group()."
        )
    return Presented(tuple(dict.fromkeys(names)))

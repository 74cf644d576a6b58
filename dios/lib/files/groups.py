"""The groups whose files a process can reach: those of the user's keyring, or those handed to a task."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Final

from dios.client.keyring import Keyring
from dios.client.ops.attributes import Handed
from dios.client.sync.node import Group, Node, Reference, ambient, connect
from dios.ids import Name
from dios.lib.files.catalogue_places import HandedCatalogue, KeyringCatalogue
from dios.lib.files.group_files import GroupFiles
from dios.limits import GROUPS_PER_CALL_MAX
from dios.wire.nametext import fingerprint

_INPUT: Final = "files/"


class ReachableGroups:
    """The groups of a process, by alias. Each is connected to at its first use, with no other group."""

    def __init__(self, node: str | None = None) -> None:
        self._node: Final = node
        self._files: Final[dict[tuple[int, str], GroupFiles]] = {}
        self._lock: Final = threading.Lock()
        weakref.finalize(self, _close_all, self._files)

    def aliases(self) -> list[str]:
        """Return the aliases of the groups that the node knows; one with a "/" has no path."""
        handed = _handed()
        if handed is not None:
            return sorted(handed)
        groups = {alias: name for alias, name in Keyring.load().groups.items() if "/" not in alias}
        names = [bytes(name) for name in groups.values()]
        known: set[str] = set()
        for start in range(0, len(names), GROUPS_PER_CALL_MAX):
            with connect(self._node, groups=names[start : start + GROUPS_PER_CALL_MAX], start=False) as node:
                known.update(group.fingerprint for group in node.groups)
        return sorted(alias for alias, name in groups.items() if fingerprint(name) in known)

    def files(self, alias: str) -> GroupFiles:
        """Return the files of a group; FileNotFoundError if the process has no such group."""
        # A connection does not survive a fork: the child makes its own.
        key = (os.getpid(), alias)
        with self._lock:
            files = self._files.get(key)
            if files is None:
                files = self._files[key] = self._opened(alias)
            return files

    def _opened(self, alias: str) -> GroupFiles:
        handed = _handed()
        if handed is not None:
            if alias not in handed:
                raise _no_group(alias, "among the inputs of this task")
            task, member, catalogue = handed[alias]
            return GroupFiles(task, member, HandedCatalogue(catalogue))
        keyring = Keyring.load()
        name = keyring.groups.get(alias)
        if name is None:
            raise _no_group(alias, "in your keyring")
        node = connect(self._node, groups=[name], start=False)
        group = _group_of(node, name)
        if group is None:
            node.close()
            raise _no_group(alias, "on this node")
        return GroupFiles(node, group, KeyringCatalogue(node, keyring, alias, group))


def _close_all(files: dict[tuple[int, str], GroupFiles]) -> None:
    for group_files in files.values():
        group_files.node.close()


def files_for_task(node: Node, alias: str, *, write: bool = True) -> tuple[list[Group], list[Handed]]:
    """Return the groups and inputs with which a task has the files of a group as ``dios://ALIAS/…``.

    Without ``write`` the task cannot change the list of files. A member of the group has every right to the
    objects in it whose names it knows, so give a task single inputs where that is too much. Raises
    FileNotFoundError if the keyring or the connection has no such group.
    """
    keyring = Keyring.load()
    name = keyring.groups.get(alias)
    group = None if name is None else node.group(bytes(name))
    if group is None:
        raise _no_group(alias, "of this connection")
    catalogue = KeyringCatalogue(node, keyring, alias, group)
    replicas = catalogue.replicas() or [catalogue.create()]
    rights = ("read", "write", "delegate") if write else ("read", "delegate")
    label = f"{_INPUT}{alias}/{group.fingerprint}"
    return [group], [replica.restrict(*rights, label=label) for replica in replicas]


def _no_group(alias: str, context: str) -> FileNotFoundError:
    return FileNotFoundError(2, f"there is no such group {context}; `dios group ls` lists yours", alias)


def _group_of(node: Node, name: Name) -> Group | None:
    mark = fingerprint(name)
    return next((group for group in node.groups if group.fingerprint == mark), None)


def _handed() -> dict[str, tuple[Node, Group, list[Reference]]] | None:
    """Return the groups with files that this task was given; None outside of tasks."""
    if ambient() is None:
        return None
    node = connect()
    groups = {group.fingerprint: group for group in node.groups}
    inputs_by_alias: dict[str, tuple[Node, Group, list[Reference]]] = {}
    for given in node.inputs:
        if given.label.startswith(_INPUT):
            alias, _, mark = given.label.removeprefix(_INPUT).partition("/")
            if mark in groups:
                inputs_by_alias.setdefault(alias, (node, groups[mark], []))[2].append(given)
    return inputs_by_alias

"""``dios group``: makes groups, sets the replicas of their files, and lists, destroys and forgets them."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Final, NamedTuple, TypedDict

import typer

from dios.cli.common.application import CommandApplication
from dios.cli.common.context import CommandContext, groups_of_keyring, opened
from dios.cli.common.failures import Failures
from dios.cli.common.json_rows import AliasRow, CreatedGroupRow
from dios.cli.common.output import (
    JsonOption,
    NodeOption,
    YesOption,
    confirm,
    counted,
    facts,
    next_step,
    reporting,
    say,
    size_text,
    table,
    time_text,
    write_json,
    write_line,
)
from dios.cli.common.principals import principal_of, principal_text
from dios.cli.nodes.setting_options import seconds_of
from dios.cli.objects.kept import kept_text, why_text
from dios.cli.objects.removal import all_targets, destroy_targets, note_left
from dios.client.grants import Grant, accepted_grants, forget_grant, format_grant, keep_grant, parse_grant
from dios.client.keyring import Keyring, check_group_alias
from dios.client.ops.nodes import require_tags
from dios.errors import DamagedError, DiosError, ExistsError, InvalidError, UnreachableError
from dios.ids import Name
from dios.lib.catalogue import Note
from dios.lib.files.catalogue_places import CATALOGUE_ALIAS, KeyringCatalogue
from dios.lib.files.group_files import GroupFiles
from dios.lib.files.group_list import destroy
from dios.lib.files.list_repair import UnitedFile, repair_list
from dios.lib.files.list_state import ListState, ReplicaHealth, list_state
from dios.lib.files.shares import SHARE_ALIAS, Share, decode_share, encode_share
from dios.lib.files.tree import FileTree, is_directory
from dios.lib.kept.promises import KeptStatus, Promises
from dios.lib.kept.report import ShortObject
from dios.limits import NAME_BYTES
from dios.wire.nametext import fingerprint, format_name

app: Final = CommandApplication(no_args_is_help=True, help="Groups: the namespaces that objects are in.")


@app.command(
    epilog="\b\nExamples:\n  dios group create analytics\n  dios put data/*.txt --group analytics\n"
    "  dios group create hr --secrecy payroll"
)
def create(
    alias: Annotated[str, typer.Argument(metavar="ALIAS", help="Your name for the group.")],
    *,
    secrecy: Annotated[
        list[str] | None,
        typer.Option(
            "--secrecy",
            metavar="TAG",
            help="Label the list of its files, and each file that is put there: see dios put.",
        ),
    ] = None,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a group, and keep its name in your keyring under ALIAS.

    Everybody who can read your keyring is a member of the group. The file has mode 0600; keep it that way.
    """
    with reporting("dios group create", as_json=as_json), opened(node) as place:
        label = require_tags(secrecy or ())
        group = place.make_group(alias)
        name = place.keyring.groups[alias]
        if label:
            label = KeyringCatalogue(place.node, place.keyring, alias, group).create(label).secrecy
        if as_json:
            created: CreatedGroupRow = {
                "alias": alias,
                "fingerprint": group.fingerprint,
                "name": format_name(name),
                "secrecy": list(label),
            }
            write_json(created)
            return
        shown = [("group", alias), ("fingerprint", group.fingerprint), ("keyring", str(place.keyring.path))]
        facts([*shown, ("secrecy", " ".join(label))] if label else shown)
        say(f"next: dios put FILE --group {alias}")


class Apart(StrEnum):
    """Things that fail together."""

    NODE = "node"
    RACK = "rack"


@app.command(
    "set",
    epilog="\b\nExamples:\n  dios group set papers --replicas 3 --apart rack\n"
    "  dios group set papers --replicas 0     (no promise any more; nothing is removed)",
)
def set_group(
    alias: Annotated[str, typer.Argument(metavar="ALIAS", help="Your name for the group.")],
    *,
    replicas: Annotated[
        int,
        typer.Option("--replicas", metavar="N", help="Durable replicas of a file; 0 ends this."),
    ],
    apart: Annotated[
        Apart, typer.Option("--apart", help="Spread them over nodes, or over racks where there are several.")
    ] = Apart.NODE,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Promise a number of replicas for all files of a group, those that are put later included.

    The cluster makes them, restores their number when a node is lost, and moves them off nodes that drain.
    They count with you on the nodes where they are. `dios group describe` shows if the promise is kept.
    """
    with reporting("dios group set", as_json=as_json), opened(node, [alias]) as place:
        group = place.group(alias)
        promises = Promises(place.node)
        if replicas:
            catalogue = KeyringCatalogue(place.node, place.keyring, alias, group).create()
            promises.keep_group(group, catalogue, label=alias, replicas=replicas, apart=apart is Apart.RACK)
        else:
            promises.end(group.fingerprint)
            _sweep(place.files(alias))
        if as_json:
            write_json({"alias": alias, "fingerprint": group.fingerprint, "replicas": replicas})
        elif replicas:
            say(f"{counted(replicas, 'replica')} of each file of {alias}; next: dios group describe {alias}")
        else:
            say(f"no number of replicas is promised for {alias} any more; existing replicas stay")


def _sweep(files: GroupFiles) -> None:
    """Destroy former files of a group that no keeper looks at any more."""
    try:
        files.sweep()
    except DiosError as error:
        say(f"former versions of files stay until the next change of the group's files: {error.message}")


@app.command(
    "describe", epilog="\b\nExamples:\n  dios group describe papers\n  dios group describe papers --json"
)
def describe_group(
    alias: Annotated[str, typer.Argument(metavar="ALIAS", help="Your name for the group.")],
    *,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a group: its files, its promised replicas, and the files that are short of them and since when.

    The row "list" shows the nodes that have the list of its files. If the list cannot be read, the rest is
    shown, and the exit status is 1.
    """
    with reporting("dios group describe", as_json=as_json), opened(node, [alias]) as place:
        group = place.group(alias)
        described = _described_list(place, alias)
        tree = described.tree
        entries = [] if tree is None else [entry for entry in tree.entries if not is_directory(entry)]
        notes = () if tree is None else tree.notes
        secrecy = place.files(alias).record.secrecy
        promises = Promises(place.node)
        promise = promises.promise(group)
        files = {fingerprint(name): entry.file for entry in entries for name in entry.names}
        former = [note.former for note in notes]
        files |= {fingerprint(name): f"{entry.file} (former)" for entry in former for name in entry.names}
        short = [] if promise is None else _short_of(promises, files, promise)
        if as_json:
            row: GroupRow = {
                "alias": alias,
                "fingerprint": group.fingerprint,
                "files": None if tree is None else len(entries),
                "size": None if tree is None else sum(entry.size for entry in entries),
                "secrecy": list(secrecy),
                "list": described.row(alias),
                "promise": promise,
                "short": [_short_row(file, short_object) for file, short_object in short],
                "former": [_former_row(note) for note in notes],
            }
            write_json(row)
            described.require_read()
            return
        size = size_text(sum(entry.size for entry in entries))
        shown = [
            ("group", alias),
            ("fingerprint", group.fingerprint),
            ("files", "not known" if tree is None else f"{len(entries)} ({size})"),
            ("list", described.text(alias)),
            ("secrecy", " ".join(secrecy) or "none"),
            ("replicas", described.unpromised(alias) if promise is None else _wish_text(promise)),
        ]
        if promise is not None:
            shown += [("kept", kept_text(promise)), ("keeper", promise.leader or "none yet")]
        shown += _former_facts(alias, notes)
        facts(shown)
        if short:
            table(
                ("FILE", "REPLICAS", "SINCE", "WHY"),
                [
                    (
                        file,
                        f"{short_object.current} of {short_object.wanted}",
                        time_text(short_object.since * 10**9),
                        why_text(short_object),
                    )
                    for file, short_object in short
                ],
            )
        described.require_read()


class ListReplicaRow(TypedDict):
    """A replica of a group's list of files: current, earlier, damaged, or missing."""

    node: str
    state: str


class ListRow(TypedDict):
    """The list of a group's files. It is equal, behind, in conflict, unreadable, or none.

    One that is behind can be read and changed, and a replica of it is not current. ``reason`` says why it is
    unreadable, and ``next`` is the command that helps; both are "" in other cases.
    """

    state: str
    replicas: list[ListReplicaRow]
    reason: str
    next: str


class _DescribedList(NamedTuple):
    """The list of a group, as far as it can be read: ``state`` is None if there is none."""

    tree: FileTree | None
    state: ListState | None
    error: DiosError | None

    def require_read(self) -> None:
        """Raise the error of reading the list."""
        if self.error is not None:
            raise self.error

    def row(self, alias: str) -> ListRow:
        """Return the state for JSON."""
        if self.error is not None:
            return {
                "state": "unreadable",
                "replicas": [],
                "reason": self.error.message,
                "next": next_step(self.error),
            }
        if self.state is None:
            return {"state": "none", "replicas": [], "reason": "", "next": ""}
        equal = "equal" if len(self.state.nodes) == len(self.state.replicas) else "behind"
        replicas: list[ListReplicaRow] = [
            {"node": node, "state": health.value} for node, health in self.state.replicas.items()
        ]
        conflict = self.state.divided
        return {
            "state": "conflict" if conflict else equal,
            "replicas": replicas,
            "reason": "",
            "next": f"dios group repair {alias}" if conflict else "",
        }

    def text(self, alias: str) -> str:
        """Return the state as a line."""
        if self.error is not None:
            return "cannot be read; see below"
        if self.state is None:
            return "none yet"
        if self.state.divided:
            return f"in conflict; next: dios group repair {alias}"
        names = ", ".join(node or "this node" for node in self.state.replicas)
        if len(self.state.nodes) == len(self.state.replicas):
            return f"on {names}; all equal" if len(self.state.replicas) > 1 else f"on {names}"
        others = "".join(
            f"; {node} {_HEALTH_TEXTS[health]}"
            for node, health in self.state.replicas.items()
            if health is not ReplicaHealth.CURRENT
        )
        return f"on {', '.join(self.state.nodes)} of {names}{others}"

    def unpromised(self, alias: str) -> str:
        """Return the line about replicas of a group without a promise."""
        if self.state is None or len(self.state.replicas) < 2:
            return "no number is promised"
        return (
            "no number is promised, so nobody replaces a lost replica of the list; "
            f"next: dios group set {alias} --replicas 2"
        )


_HEALTH_TEXTS: Final = {
    ReplicaHealth.EARLIER: "has an earlier version",
    ReplicaHealth.DAMAGED: "has a damaged one",
    ReplicaHealth.MISSING: "does not answer, or has lost it",
}


def _described_list(place: CommandContext, alias: str) -> _DescribedList:
    """Return the list of a group; one that cannot be read is described by the error."""
    files = place.files(alias)
    try:
        tree = files.tree()
        state = list_state(files.record) if files.record.exists() else None
    except (UnreachableError, DamagedError) as error:
        return _DescribedList(None, None, error)
    return _DescribedList(tree, state, None)


class ShortFileRow(TypedDict):
    """A file with fewer current replicas than promised, or with replicas in conflict; since in seconds."""

    file: str
    fingerprint: str
    promise: str
    wanted: int
    current: int
    since: int
    reason: str
    conflict: list[str]


class FormerFileRow(TypedDict):
    """A former file that is still stored; noted in nanoseconds. A removed one waits for no replacement."""

    file: str
    size: int
    noted: int
    removed: bool


class GroupRow(AliasRow):
    """A group: its files and their bytes, the tags that files get, and how far its promise is kept.

    The numbers of files and of bytes are null if the list cannot be read. The former files stay until their
    replacements are kept.
    """

    files: int | None
    size: int | None
    list: ListRow
    secrecy: list[str]
    promise: KeptStatus | None
    short: list[ShortFileRow]
    former: list[FormerFileRow]


def _former_row(note: Note) -> FormerFileRow:
    former = note.former
    return {
        "file": former.file,
        "size": former.size,
        "noted": note.noted_ns,
        "removed": not note.until,
    }


def _former_facts(alias: str, notes: Sequence[Note]) -> list[tuple[str, str]]:
    """Return lines about the former files that are still stored."""
    waiting = [note.former for note in notes if note.until]
    shown: list[tuple[str, str]] = []
    if waiting:
        size = size_text(sum(former.size for former in waiting))
        way = f"dios get {alias}/{waiting[-1].file} --former"
        versions = f"{counted(len(waiting), 'version')} ({size})"
        shown.append(("former", f"{versions}, until the new ones have their replicas: {way}"))
    if len(waiting) < len(notes):
        shown.append(("removed", f"{counted(len(notes) - len(waiting), 'file')} to be destroyed"))
    return shown


def _short_row(file: str, short_object: ShortObject) -> ShortFileRow:
    return {
        "file": file,
        "fingerprint": short_object.fingerprint,
        "promise": short_object.promise,
        "wanted": short_object.wanted,
        "current": short_object.current,
        "since": short_object.since,
        "reason": short_object.reason,
        "conflict": list(short_object.conflict),
    }


def _short_of(
    promises: Promises, files: dict[str, str], promise: KeptStatus
) -> list[tuple[str, ShortObject]]:
    short_objects = [
        short_object for short_object in promises.short_objects() if short_object.promise == promise.key
    ]
    named = [
        (files.get(short_object.fingerprint, "(the list of the files)"), short_object)
        for short_object in short_objects
    ]
    return sorted(named, key=lambda pair: (pair[0], pair[1].fingerprint))


def _wish_text(promise: KeptStatus) -> str:
    return (
        f"{promise.replicas} of each file, {'in different racks' if promise.apart else 'on different nodes'}"
    )


@app.command(
    epilog="\b\nExamples:\n  dios group repair papers\n  dios group repair papers --json | jq .united"
)
def repair(
    alias: Annotated[str, typer.Argument(metavar="ALIAS", help="Your name for the group.")],
    *,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make one list of the files of a group, if its replicas differ or none of them counts any more.

    An earlier release could leave replicas that differ, after a partition or after two programs that put at
    the same time. The new list has the files of all of them. Two versions of a file are kept: the latest one
    has the path, and the other one's name ends in "(conflict …)". Every node that may have a replica has to
    answer.

    Files that were removed, or had another path, in one of the lists are listed again. `dios ls --long` shows
    those that are on no disk any more. A list that is sound stays as it is.
    """
    with reporting("dios group repair", as_json=as_json), opened(node, [alias]) as place:
        repaired = repair_list(place.files(alias))
        if as_json:
            row: RepairedListRow = {
                "alias": alias,
                "repaired": repaired is not None,
                "lists": 1 if repaired is None else repaired.lists,
                "files": None if repaired is None else repaired.files,
                "united": [] if repaired is None else [_united_row(united) for united in repaired.united],
            }
            write_json(row)
            return
        if repaired is None:
            say(f"the list of {alias} is not in conflict, and nothing was changed")
            return
        if repaired.united:
            rows = [_united_text(united, repaired.lists) for united in repaired.united]
            table(("FILE", "SIZE", "PUT", "LISTS", "NOTE"), rows, right=("SIZE",))
        origin = "from copies" if repaired.lists == 1 else f"of {repaired.lists} lists"
        say(
            f"one list of {alias} was made {origin}: {counted(repaired.files, 'file')}, "
            f"{len(repaired.united)} of them not the same in all; next: dios ls {alias} --long"
        )


class UnitedFileRow(TypedDict):
    """A file that the lists of a group did not have in the same way.

    ``listed`` is the number of lists that had it. ``former_path`` is the path that it had if another file has
    that now. ``also`` are other paths of the same objects, and ``copies`` is the number of further objects
    with the same bytes. ``put`` is in nanoseconds.
    """

    file: str
    fingerprint: str
    size: int
    put: int
    listed: int
    former_path: str | None
    also: list[str]
    copies: int


class RepairedListRow(TypedDict):
    """The list of a group: if it was repaired, the number of its files, and those that differed.

    ``files`` is null if nothing was changed.
    """

    alias: str
    repaired: bool
    lists: int
    files: int | None
    united: list[UnitedFileRow]


def _united_row(united: UnitedFile) -> UnitedFileRow:
    return {
        "file": united.path,
        "fingerprint": fingerprint(united.entry.name),
        "size": united.entry.size,
        "put": united.entry.put_ns,
        "listed": united.listed,
        "former_path": united.former_path,
        "also": list(united.also),
        "copies": united.copies,
    }


def _united_text(united: UnitedFile, lists: int) -> tuple[str, ...]:
    notes = [f"was {united.former_path}"] if united.former_path is not None else []
    notes += [f"also {', '.join(united.also)}"] if united.also else []
    notes += [f"stored {united.copies + 1} times"] if united.copies else []
    size, put = size_text(united.entry.size), time_text(united.entry.put_ns)
    return united.path, size, put, f"{united.listed} of {lists}", "; ".join(notes)


@app.command(
    "share",
    epilog="\b\nExamples:\n  dios group share papers --with uid:1234 --read --for 7d\n"
    "  dios group share papers --with anna --read > grant.txt",
)
def share_group(
    alias: Annotated[str, typer.Argument(metavar="ALIAS", help="Your name for the group.")],
    *,
    reader: Annotated[
        str, typer.Option("--with", metavar="WHO", help="The user who may read it: a name or uid:N.")
    ],
    read: Annotated[bool, typer.Option("--read", help="Let the user read files, the only right to share.")],
    span: Annotated[
        str, typer.Option("--for", metavar="SPAN", help="Until then: 90s, 5min, 1h, 2d; at most 365d.")
    ] = "30d",
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let another user read the files of a group for a time, and print a grant for that user.

    The grant is of no use to anybody else: on every node the user's own processes alone can read with it.
    They can neither write, nor destroy, nor give what they find to tasks. Files that you put later are
    included. `dios group shares` lists your shares, and `dios group unshare` ends them.
    """
    with reporting("dios group share", as_json=as_json), opened(node, [alias]) as place:
        if not read:
            raise InvalidError("say what to share: add --read, the only right that can be shared")
        principal = principal_of(reader)
        if not principal:
            raise InvalidError(f"this machine knows no user {reader!r}. Give the number, as uid:1234.")
        group = place.group(alias)
        catalogue = KeyringCatalogue(place.node, place.keyring, alias, group).create()
        nonce = secrets.token_bytes(NAME_BYTES)
        expires_ns = time.time_ns() + seconds_of(span, "--for") * 10**9
        record = place.node.share_group(group, principal, nonce=nonce, expires_ns=expires_ns)
        record.write_bytes(encode_share(Share(alias, principal, expires_ns, time.time_ns())))
        place.keyring.add(
            f"{SHARE_ALIAS}{alias}/{record.fingerprint}", Name(record.name or b""), section="objects"
        )
        issuer = f"uid:{os.getuid()}"
        grant = Grant(
            alias,
            place.keyring.name_of(alias),
            catalogue.name or b"",
            nonce,
            issuer,
            principal,
            expires_ns,
        )
        text = format_grant(grant)
        if as_json:
            write_json(
                {"share": record.fingerprint, "reader": principal, "expires": expires_ns, "grant": text}
            )
            return
        write_line(text)
        say(f"for {principal_text(principal)}, until {time_text(expires_ns)}; there: dios group accept GRANT")


@app.command(
    "accept",
    epilog="\b\nExamples:\n  dios group accept diosgrant1…\n  dios group accept - --as theirs < grant.txt",
)
def accept_group(
    text: Annotated[
        str,
        typer.Argument(
            metavar="GRANT", help="The text that `dios group share` printed; - is standard input."
        ),
    ],
    *,
    label: Annotated[
        str, typer.Option("--as", metavar="ALIAS", help="Your name for the group; default: its owner's.")
    ] = "",
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Accept a grant: the files of the group are yours to read, under ALIAS in all commands that read.

    The node refuses a grant for another user, and a grant that is over or was withdrawn.
    """
    with reporting("dios group accept", as_json=as_json), opened(node) as place:
        grant = parse_grant(sys.stdin.read() if text == "-" else text)
        alias = label or grant.alias
        check_group_alias(alias)
        if alias in place.keyring.groups:
            raise ExistsError(f"your keyring already has a group {alias!r}. Choose another with --as ALIAS.")
        group = place.node.accept_share(
            grant.group, nonce=grant.nonce, issuer=grant.issuer, expires_ns=grant.expires_ns
        )
        keep_grant(alias, grant)
        if as_json:
            write_json(
                {
                    "alias": alias,
                    "fingerprint": group.fingerprint,
                    "issuer": grant.issuer,
                    "expires": grant.expires_ns,
                }
            )
        else:
            say(f"group {alias} of {principal_text(grant.issuer)}, until {time_text(grant.expires_ns)}")
            say(f"next: dios ls {alias}")


@app.command("shares", epilog="\b\nExamples:\n  dios group shares\n  dios group shares papers --json")
def list_shares(
    alias: Annotated[str, typer.Argument(metavar="[ALIAS]", help="Only shares of this group.")] = "",
    *,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the users with whom you share your groups."""
    with reporting("dios group shares", as_json=as_json), opened(node) as place:
        rows = [(mark, share) for _, mark, share in _shares(place, alias)]
        if as_json:
            write_json(
                [
                    {"share": mark, "alias": share.alias, "reader": share.reader, "expires": share.expires_ns}
                    for mark, share in rows
                ]
            )
        elif rows:
            table(
                ("SHARE", "GROUP", "READER", "UNTIL"),
                [
                    (mark, share.alias, principal_text(share.reader), time_text(share.expires_ns))
                    for mark, share in rows
                ],
            )
        else:
            say("you share no group; next: dios group share ALIAS --with WHO --read --for 7d")


@app.command(
    "unshare",
    epilog="\b\nExamples:\n  dios group unshare papers --with uid:1234\n  dios group unshare papers --all",
)
def unshare_group(
    alias: Annotated[str, typer.Argument(metavar="ALIAS", help="Your name for the group.")],
    *,
    reader: Annotated[
        str, typer.Option("--with", metavar="WHO", help="Only shares with this user: a name or uid:N.")
    ] = "",
    everything: Annotated[bool, typer.Option("--all", help="All shares of the group.")] = False,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Withdraw shares of a group: their grants are refused, and what was opened is taken back.

    A node that cannot be reached learns of it when it is back, or takes the node of the share for dead first.
    Bytes that were read cannot be taken back.
    """
    with reporting("dios group unshare", as_json=as_json), opened(node, [alias]) as place:
        if bool(reader) is everything:
            raise InvalidError("choose the shares to withdraw with --with WHO, or all of them with --all")
        principal = principal_of(reader) if reader else ""
        ended = []
        for key, mark, share in _shares(place, alias):
            if principal in {"", share.reader}:
                destroy(place.node, [place.keyring.objects[key]])
                place.keyring.remove(key, section="objects")
                ended.append((mark, share.reader))
        if as_json:
            write_json([{"share": mark, "reader": who} for mark, who in ended])
        else:
            say(f"withdrew {counted(len(ended), 'share')} of {alias}")


def _shares(place: CommandContext, alias: str) -> list[tuple[str, str, Share]]:
    """Return the alias, the fingerprint and the content of the records of shares that are not over.

    Entries of others are removed from the keyring.
    """
    shares = []
    for key, name in list(place.keyring.objects.items()):
        if not key.startswith(f"{SHARE_ALIAS}{alias}/" if alias else SHARE_ALIAS):
            continue
        records = place.node.lookup(name, limit=1)
        if records:
            share = decode_share(records[0].read_bytes())
            if share.expires_ns > time.time_ns():
                shares.append((key, records[0].fingerprint, share))
                continue
            destroy(place.node, [name])
        if records or not records.incomplete:
            place.keyring.remove(key, section="objects")
    return shares


@app.command("ls", epilog="\b\nExamples:\n  dios group ls\n  dios group ls --json")
def list_groups(*, node: NodeOption = None, as_json: JsonOption = False) -> None:
    """List the groups of your keyring, and show which of them this node knows."""
    with reporting("dios group ls", as_json=as_json):
        rows = [(alias, mark, here) for alias, (mark, here) in groups_of_keyring(node).items()]
        if as_json:
            write_json([{"alias": alias, "fingerprint": mark, "here": here} for alias, mark, here in rows])
        elif rows:
            table(
                ("GROUP", "FINGERPRINT", "ON THIS NODE"),
                [(alias, mark, "yes" if here else "no") for alias, mark, here in rows],
            )
        else:
            say("your keyring has no groups; next: dios group create ALIAS")


@app.command(
    "rm",
    epilog="\b\nExamples:\n  dios group rm papers          (only if it has no files)\n"
    "  dios group rm papers --all    (asks, then destroys its files, too)",
)
def remove_group(
    alias: Annotated[str, typer.Argument(metavar="ALIAS", help="Your name for the group.")],
    *,
    everything: Annotated[bool, typer.Option("--all", help="Destroy its files, too.")] = False,
    yes: YesOption = False,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Destroy a group, with its catalogue and the promise of its replicas, and remove it from your keyring.

    A group with files is refused without --all. Objects of programs, which no catalogue lists, are not
    destroyed, but nobody finds them any more. If a node does not answer, the group stays.
    """
    with reporting("dios group rm", as_json=as_json), opened(node, [alias]) as place:
        group = place.group(alias)
        targets = all_targets(place, alias)
        files = sum(bool(target.names) and target.former is None for target in targets)
        if files and not everything:
            raise InvalidError(f"group {alias} has {counted(files, 'file')}. Add --all to destroy them, too.")
        confirm(f"destroy group {alias} and its {counted(files, 'file')}", yes=yes)
        failures = Failures("not removed")
        note_left(place, destroy_targets(place, targets, failures).later, failures)
        failures.end()
        if place.here() is not None and Promises(place.node).promise(group) is not None:
            Promises(place.node).end(group.fingerprint)
        replicas = KeyringCatalogue(place.node, place.keyring, alias, group).replicas()
        # A name without a replica would be a lost list, which stops this command if it has to be repeated.
        _remove_catalogue(place.keyring, alias)
        for catalogue in replicas:
            catalogue.destroy()
        mark = group.fingerprint
        group.destroy()
        place.keyring.remove(alias)
        if as_json:
            write_json({"alias": alias, "fingerprint": mark, "files": files})
        else:
            say(f"group {alias} and its {counted(files, 'file')} were destroyed")


def _remove_alias(keyring: Keyring, alias: str) -> None:
    keyring.remove(alias)
    _remove_catalogue(keyring, alias)


def _remove_catalogue(keyring: Keyring, alias: str) -> None:
    if CATALOGUE_ALIAS + alias in keyring.objects:
        keyring.remove(CATALOGUE_ALIAS + alias, section="objects")


@app.command(
    epilog="\b\nExamples:\n  dios group forget analytics\n"
    "  dios group forget analytics --yes     (asks nothing)"
)
def forget(
    alias: Annotated[str, typer.Argument(metavar="ALIAS", help="Your name for the group.")],
    *,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Remove a group and its catalogue from your keyring, so that ALIAS is free again. No node is asked.

    Use this for groups of nodes that no longer exist. Nothing is destroyed, but without a group's name you
    cannot find its objects.
    """
    with reporting("dios group forget", as_json=as_json):
        keyring = Keyring.load()
        if alias not in keyring.groups and alias in accepted_grants():
            mark = fingerprint(accepted_grants()[alias].group)
            forget_grant(alias)
            _show_forgotten(alias, mark, as_json=as_json)
            return
        mark = fingerprint(keyring.name_of(alias)) if alias in keyring.groups else ""
        if mark:
            say(f"If group {alias} still exists, you will not find its objects any more.")
            confirm(f"remove {alias} from your keyring", yes=yes)
        _remove_alias(keyring, alias)
        _show_forgotten(alias, mark, as_json=as_json)


def _show_forgotten(alias: str, mark: str, *, as_json: bool) -> None:
    if as_json:
        write_json({"alias": alias, "fingerprint": mark})
    else:
        say(f"{alias} was removed from your keyring")

"""``dios group``: makes groups, sets the replicas of their files, and lists, destroys and forgets them."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from msgspec import field

from dios.cli.common.application import CommandApplication
from dios.cli.common.context import CommandContext, groups_of_keyring, opened
from dios.cli.common.failures import Failures
from dios.cli.common.options import argument, option
from dios.cli.common.output import (
    Cells,
    confirm,
    counted,
    next_step,
    say,
    size_text,
    time_text,
    write_line,
)
from dios.cli.common.principals import principal_of, principal_text
from dios.cli.common.results import YES_OPTION, CommonOptions, OutputOptions
from dios.cli.common.rows import Row
from dios.cli.nodes.setting_options import seconds_of
from dios.cli.objects.kept import kept_text, why_text
from dios.cli.objects.removal import all_targets, destroy_targets, note_left
from dios.client.grants import Grant, accepted_grants, forget_grant, format_grant, keep_grant, parse_grant
from dios.client.keyring import Keyring, check_group_alias
from dios.client.ops.nodes import require_tags
from dios.errors import DamagedError, DiosError, ExistsError, InvalidError, UnreachableError
from dios.ids import Name
from dios.lib.files.catalogue_places import CATALOGUE_ALIAS, KeyringCatalogue
from dios.lib.files.catalogue_record import CatalogueRecord
from dios.lib.files.group_files import GroupFiles
from dios.lib.files.group_list import destroy
from dios.lib.files.list_repair import UnitedFile, list_state, repair_list
from dios.lib.files.shares import SHARE_ALIAS, Share, decode_share, encode_share
from dios.lib.files.tree import is_directory
from dios.lib.kept.promises import KeptStatus, Promises
from dios.limits import NAME_BYTES
from dios.wire.nametext import fingerprint, format_name

app: Final = CommandApplication(no_args_is_help=True, help="Groups: the namespaces that objects are in.")

ALIAS_ARGUMENT: Final[str] = argument("ALIAS", "Your name for the group.")


class AliasRow(Row):
    """A group of the keyring."""

    alias: str
    fingerprint: str


class CreatedGroupRow(AliasRow):
    """A new group, with its secret name, and the tags that its files get."""

    name: str
    secrecy: list[str]


class ListedGroupRow(AliasRow):
    """A group of the keyring, and True if the asked node knows it."""

    here: bool


class DestroyedGroupRow(AliasRow):
    """A group that was destroyed with this number of files."""

    files: int


class PromisedGroupRow(AliasRow):
    """A group, and the promised number of replicas of its files."""

    replicas: int


class GrantRow(Row):
    """A new share of a group: its end in nanoseconds, and the grant for the reader."""

    share: str
    reader: str
    expires: int
    grant: str


class AcceptedRow(AliasRow):
    """A group that another user shares, until ``expires`` (nanoseconds)."""

    issuer: str
    expires: int


class ShareRow(Row):
    """A share of one of this user's groups."""

    share: str
    alias: str
    reader: str
    expires: int


class WithdrawnRow(Row):
    """A share that was withdrawn."""

    share: str
    reader: str


@app.command(
    examples="dios group create analytics\ndios put data/*.txt --group analytics\n"
    "dios group create hr --secrecy payroll",
    json=CreatedGroupRow,
)
def create(
    alias: str = ALIAS_ARGUMENT,
    *,
    secrecy: list[str] | None = option(
        "--secrecy TAG", "Label the list of its files, and each file that is put there: see dios put."
    ),
    common: CommonOptions,
) -> None:
    """Make a group, and keep its name in your keyring under ALIAS.

    Everybody who can read your keyring is a member of the group. The file has mode 0600; keep it that way.
    """
    with opened(common.node) as place:
        label = require_tags(secrecy or ())
        group = place.make_group(alias)
        name = place.keyring.groups[alias]
        if label:
            label = KeyringCatalogue(place.node, place.keyring, alias, group).create(label).secrecy
        common.print_row(
            CreatedGroupRow(alias, group.fingerprint, format_name(name), list(label)),
            f"next: dios put FILE --group {alias}",
            facts={
                "group": alias,
                "fingerprint": group.fingerprint,
                "keyring": str(place.keyring.path),
                "secrecy": " ".join(label) or None,
            },
        )


class Apart(StrEnum):
    """Things that fail together."""

    NODE = "node"
    RACK = "rack"


@app.command(
    "set",
    examples="dios group set papers --replicas 3 --apart rack\n"
    "dios group set papers --replicas 0     (no promise any more; nothing is removed)",
    json=PromisedGroupRow,
)
def set_group(
    alias: str = ALIAS_ARGUMENT,
    *,
    replicas: int = option("--replicas N", "Durable replicas of a file; 0 ends this."),
    apart: Apart = option(
        "--apart", "Spread them over nodes, or over racks where there are several.", default=Apart.NODE
    ),
    common: CommonOptions,
) -> None:
    """Promise a number of replicas for all files of a group, those that are put later included.

    The cluster makes them, restores their number when a node is lost, and moves them off nodes that drain.
    They count with you on the nodes where they are. `dios group describe` shows if the promise is kept.
    """
    with opened(common.node, [alias]) as place:
        group = place.group(alias)
        promises = Promises(place.node)
        if replicas:
            catalogue = KeyringCatalogue(place.node, place.keyring, alias, group).create()
            promises.keep_group(group, catalogue, label=alias, replicas=replicas, apart=apart is Apart.RACK)
        else:
            promises.end(group.fingerprint)
            _sweep(place.files(alias))
        common.print_row(
            PromisedGroupRow(alias, group.fingerprint, replicas),
            f"{counted(replicas, 'replica')} of each file of {alias}; next: dios group describe {alias}"
            if replicas
            else f"no number of replicas is promised for {alias} any more; existing replicas stay",
        )


def _sweep(files: GroupFiles) -> None:
    """Destroy former files of a group that no keeper looks at any more."""
    try:
        files.sweep()
    except DiosError as error:
        say(f"former versions of files stay until the next change of the group's files: {error.message}")


class ListReplicaRow(Row):
    """A replica of a group's list of files: current, earlier, damaged, or missing."""

    node: str
    state: str


class ListRow(Row):
    """The list of a group's files. It is equal, behind, in conflict, unreadable, or none.

    One that is behind can be read and changed, and a replica of it is not current. ``reason`` says why it is
    unreadable, and ``next`` is the command that helps; both are "" in other cases.
    """

    state: str
    replicas: list[ListReplicaRow]
    reason: str
    next: str

    def __str__(self) -> str:
        """Return the state as a line."""
        if self.state in _STATE_TEXTS:
            return _STATE_TEXTS[self.state]
        if self.next:
            return f"in conflict; next: {self.next}"
        names = ", ".join(replica.node or "this node" for replica in self.replicas)
        if self.state == "equal":
            return f"on {names}; all equal" if len(self.replicas) > 1 else f"on {names}"
        current = ", ".join(replica.node for replica in self.replicas if replica.state == "current")
        others = "".join(
            f"; {replica.node} {_HEALTH_TEXTS[replica.state]}"
            for replica in self.replicas
            if replica.state != "current"
        )
        return f"on {current} of {names}{others}"


_STATE_TEXTS: Final = {"unreadable": "cannot be read; see below", "none": "none yet"}
_HEALTH_TEXTS: Final = {
    "earlier": "has an earlier version",
    "damaged": "has a damaged one",
    "missing": "does not answer, or has lost it",
}


class ShortFileRow(Row):
    """A file with fewer current replicas than promised, or with replicas in conflict; since in seconds."""

    file: str
    fingerprint: str
    promise: str
    wanted: int
    current: int
    since: int
    reason: str
    conflict: list[str]


class FormerFileRow(Row):
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
    listing: ListRow = field(name="list")
    secrecy: list[str]
    promise: KeptStatus | None
    short: list[ShortFileRow]
    former: list[FormerFileRow]


@app.command(
    "describe", examples="dios group describe papers\ndios group describe papers --json", json=GroupRow
)
def describe_group(alias: str = ALIAS_ARGUMENT, *, common: CommonOptions) -> None:
    """Show a group: its files, its promised replicas, and the files that are short of them and since when.

    The row "list" shows the nodes that have the list of its files. If the list cannot be read, the rest is
    shown, and the exit status is 1.
    """
    with opened(common.node, [alias]) as place:
        group = place.group(alias)
        tree, error = None, None
        try:
            tree = place.files(alias).tree()
            listed = _list_row(place.files(alias).record, alias)
        except (UnreachableError, DamagedError) as reading_error:
            tree, error = None, reading_error
            listed = ListRow("unreadable", [], error.message, next_step(error))
        entries = [] if tree is None else [entry for entry in tree.entries if not is_directory(entry)]
        notes = () if tree is None else tree.notes
        promises = Promises(place.node)
        promise = promises.promise(group)
        files = {fingerprint(name): entry.file for entry in entries for name in entry.names}
        former = [note.former for note in notes]
        files |= {fingerprint(name): f"{entry.file} (former)" for entry in former for name in entry.names}
        row = GroupRow(
            alias,
            group.fingerprint,
            None if tree is None else len(entries),
            None if tree is None else sum(entry.size for entry in entries),
            listed,
            list(place.files(alias).record.secrecy),
            promise,
            [] if promise is None else _short_rows(promises, files, promise),
            [
                FormerFileRow(note.former.file, note.former.size, note.noted_ns, not note.until)
                for note in notes
            ],
        )
        lines = (
            {
                "FILE": short.file,
                "REPLICAS": f"{short.current} of {short.wanted}",
                "SINCE": time_text(short.since * 10**9),
                "WHY": why_text(short.reason, short.conflict),
            }
            for short in row.short
        )
        common.print_row(row, facts=_facts(row), table=lines)
        if error is not None:
            raise error


def _list_row(record: CatalogueRecord, alias: str) -> ListRow:
    """Return the state of a group's list. Raises the error of reading it."""
    if not record.exists():
        return ListRow("none", [], "", "")
    state = list_state(record)
    replicas = [ListReplicaRow(node, health.value) for node, health in state.replicas.items()]
    if state.divided:
        return ListRow("conflict", replicas, "", f"dios group repair {alias}")
    return ListRow("equal" if len(state.nodes) == len(replicas) else "behind", replicas, "", "")


def _facts(row: GroupRow) -> dict[str, str | None]:
    promise, waiting = row.promise, [former for former in row.former if not former.removed]
    size = size_text(sum(former.size for former in waiting))
    removed = len(row.former) - len(waiting)
    wish = "no number is promised"
    if promise is not None:
        apart = "in different racks" if promise.apart else "on different nodes"
        wish = f"{promise.replicas} of each file, {apart}"
    elif len(row.listing.replicas) > 1:
        wish += ", so nobody replaces a lost replica of the list; "
        wish += f"next: dios group set {row.alias} --replicas 2"
    return {
        "group": row.alias,
        "fingerprint": row.fingerprint,
        "files": "not known" if row.size is None else f"{row.files} ({size_text(row.size)})",
        "list": str(row.listing),
        "secrecy": " ".join(row.secrecy) or "none",
        "replicas": wish,
        "kept": None if promise is None else kept_text(promise),
        "keeper": None if promise is None else promise.leader or "none yet",
        "former": f"{counted(len(waiting), 'version')} ({size}), until the new ones have their replicas: "
        f"dios get {row.alias}/{waiting[-1].file} --former"
        if waiting
        else None,
        "removed": f"{counted(removed, 'file')} to be destroyed" if removed else None,
    }


def _short_rows(promises: Promises, files: Mapping[str, str], promise: KeptStatus) -> list[ShortFileRow]:
    rows = [
        ShortFileRow.of(short, file=files.get(short.fingerprint, "(the list of the files)"))
        for short in promises.short_objects()
        if short.promise == promise.key
    ]
    return sorted(rows, key=lambda row: (row.file, row.fingerprint))


class UnitedFileRow(Row):
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


class RepairedListRow(Row):
    """The list of a group: if it was repaired, the number of its files, and those that differed.

    ``files`` is null if nothing was changed.
    """

    alias: str
    repaired: bool
    lists: int
    files: int | None
    united: list[UnitedFileRow]


@app.command(
    examples="dios group repair papers\ndios group repair papers --json | jq .united", json=RepairedListRow
)
def repair(alias: str = ALIAS_ARGUMENT, *, common: CommonOptions) -> None:
    """Make one list of the files of a group, if its replicas differ or none of them counts any more.

    An earlier release could leave replicas that differ, after a partition or after two programs that put at
    the same time. The new list has the files of all of them. Two versions of a file are kept: the latest
    has the path, and the name of the other ends in "(conflict …)". Every node that may have a replica has to
    answer.

    Files that were removed, or had another path, in one of the lists are listed again. `dios ls --long` shows
    those that are on no disk any more. A list that is sound stays as it is.
    """
    with opened(common.node, [alias]) as place:
        repaired = repair_list(place.files(alias))
        if repaired is None:
            common.print_row(
                RepairedListRow(alias, repaired=False, lists=1, files=None, united=[]),
                f"the list of {alias} is not in conflict, and nothing was changed",
            )
            return
        rows = [_united_row(united) for united in repaired.united]
        origin = "from copies" if repaired.lists == 1 else f"of {repaired.lists} lists"
        common.print_row(
            RepairedListRow(alias, repaired=True, lists=repaired.lists, files=repaired.files, united=rows),
            f"one list of {alias} was made {origin}: {counted(repaired.files, 'file')}, "
            f"{len(rows)} of them not the same in all; next: dios ls {alias} --long",
            table=(_united_cells(row, repaired.lists) for row in rows),
        )


def _united_row(united: UnitedFile) -> UnitedFileRow:
    entry = united.entry
    put = {"fingerprint": fingerprint(entry.name), "size": entry.size, "put": entry.put_ns}
    return UnitedFileRow.of(united, file=united.path, **put)


def _united_cells(row: UnitedFileRow, lists: int) -> Cells:
    notes = [f"was {row.former_path}"] if row.former_path is not None else []
    notes += [f"also {', '.join(row.also)}"] if row.also else []
    notes += [f"stored {row.copies + 1} times"] if row.copies else []
    return {
        "FILE": row.file,
        "SIZE": size_text(row.size),
        "PUT": time_text(row.put),
        "LISTS": f"{row.listed} of {lists}",
        "NOTE": "; ".join(notes),
    }


@app.command(
    "share",
    examples="dios group share papers --with uid:1234 --read --for 7d\n"
    "dios group share papers --with anna --read > grant.txt",
    json=GrantRow,
)
def share_group(
    alias: str = ALIAS_ARGUMENT,
    *,
    reader: str = option("--with WHO", "The user who may read it: a name or uid:N.", required=True),
    read: bool = option("--read", "Let the user read files, the only right to share.", required=True),
    span: str = option("--for SPAN", "Until then: 90s, 5min, 1h, 2d; at most 365d.", default="30d"),
    common: CommonOptions,
) -> None:
    """Let another user read the files of a group for a time, and print a grant for that user.

    The grant is of no use to anybody else: on every node the user's own processes alone can read with it.
    They can neither write, nor destroy, nor give what they find to tasks. Files that you put later are
    included. `dios group shares` lists your shares, and `dios group unshare` ends them.
    """
    with opened(common.node, [alias]) as place:
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
        name, list_name = place.keyring.name_of(alias), catalogue.name or b""
        grant = format_grant(Grant(alias, name, list_name, nonce, issuer, principal, expires_ns))
        if not common.as_json:
            write_line(grant)
        common.print_row(
            GrantRow(record.fingerprint, principal, expires_ns, grant),
            f"for {principal_text(principal)}, until {time_text(expires_ns)}; there: dios group accept GRANT",
        )


@app.command(
    "accept",
    examples="dios group accept diosgrant1…\ndios group accept - --as theirs < grant.txt",
    json=AcceptedRow,
)
def accept_group(
    text: str = argument("GRANT", "The text that `dios group share` printed; - is standard input."),
    *,
    label: str = option("--as ALIAS", "Your name for the group; default: its owner's."),
    common: CommonOptions,
) -> None:
    """Accept a grant: the files of the group are yours to read, under ALIAS in all commands that read.

    The node refuses a grant for another user, and a grant that is over or was withdrawn.
    """
    with opened(common.node) as place:
        grant = parse_grant(sys.stdin.read() if text == "-" else text)
        alias = label or grant.alias
        check_group_alias(alias)
        if alias in place.keyring.groups:
            raise ExistsError(f"your keyring already has a group {alias!r}. Choose another with --as ALIAS.")
        group = place.node.accept_share(
            grant.group, nonce=grant.nonce, issuer=grant.issuer, expires_ns=grant.expires_ns
        )
        keep_grant(alias, grant)
        common.print_row(
            AcceptedRow(alias, group.fingerprint, grant.issuer, grant.expires_ns),
            f"group {alias} of {principal_text(grant.issuer)}, until {time_text(grant.expires_ns)}",
            f"next: dios ls {alias}",
        )


@app.command("shares", examples="dios group shares\ndios group shares papers --json", json=[ShareRow])
def list_shares(
    alias: str = argument("[ALIAS]", "Only shares of this group."), *, common: CommonOptions
) -> None:
    """List the users with whom you share your groups."""
    with opened(common.node) as place:
        common.print_rows(
            [
                ShareRow(mark, share.alias, share.reader, share.expires_ns)
                for _, mark, share in _shares(place, alias)
            ],
            lambda row: {
                "SHARE": row.share,
                "GROUP": row.alias,
                "READER": principal_text(row.reader),
                "UNTIL": time_text(row.expires),
            },
            empty="you share no group; next: dios group share ALIAS --with WHO --read --for 7d",
        )


@app.command(
    "unshare",
    examples="dios group unshare papers --with uid:1234\ndios group unshare papers --all",
    json=[WithdrawnRow],
)
def unshare_group(
    alias: str = ALIAS_ARGUMENT,
    *,
    reader: str = option("--with WHO", "Only shares with this user: a name or uid:N."),
    everything: bool = option("--all", "All shares of the group."),
    common: CommonOptions,
) -> None:
    """Withdraw shares of a group: their grants are refused, and what was opened is taken back.

    A node that cannot be reached learns of it when it is back, or takes the node of the share for dead first.
    Bytes that were read cannot be taken back.
    """
    with opened(common.node, [alias]) as place:
        if bool(reader) is everything:
            raise InvalidError("choose the shares to withdraw with --with WHO, or all of them with --all")
        principal = principal_of(reader) if reader else ""
        ended = []
        for key, mark, share in _shares(place, alias):
            if principal in {"", share.reader}:
                destroy(place.node, [place.keyring.objects[key]])
                place.keyring.remove(key, section="objects")
                ended.append(WithdrawnRow(mark, share.reader))
        common.print_row(ended, f"withdrew {counted(len(ended), 'share')} of {alias}")


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


@app.command("ls", examples="dios group ls\ndios group ls --json", json=[ListedGroupRow])
def list_groups(common: CommonOptions) -> None:
    """List the groups of your keyring, and show which of them this node knows."""
    common.print_rows(
        [ListedGroupRow(alias, *known) for alias, known in groups_of_keyring(common.node).items()],
        lambda row: {
            "GROUP": row.alias,
            "FINGERPRINT": row.fingerprint,
            "ON THIS NODE": "yes" if row.here else "no",
        },
        empty="your keyring has no groups; next: dios group create ALIAS",
    )


@app.command(
    "rm",
    examples="dios group rm papers          (only if it has no files)\n"
    "dios group rm papers --all    (asks, then destroys its files, too)",
    json=DestroyedGroupRow,
)
def remove_group(
    alias: str = ALIAS_ARGUMENT,
    *,
    everything: bool = option("--all", "Destroy its files, too."),
    yes: bool = YES_OPTION,
    common: CommonOptions,
) -> None:
    """Destroy a group, with its catalogue and the promise of its replicas, and remove it from your keyring.

    A group with files is refused without --all. Objects of programs, which no catalogue lists, are not
    destroyed, but nobody finds them any more. If a node does not answer, the group stays.
    """
    with opened(common.node, [alias]) as place:
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
        common.print_row(
            DestroyedGroupRow(alias, mark, files),
            f"group {alias} and its {counted(files, 'file')} were destroyed",
        )


def _remove_catalogue(keyring: Keyring, alias: str) -> None:
    if CATALOGUE_ALIAS + alias in keyring.objects:
        keyring.remove(CATALOGUE_ALIAS + alias, section="objects")


@app.command(
    examples="dios group forget analytics\ndios group forget analytics --yes     (asks nothing)",
    json=AliasRow,
)
def forget(
    alias: str = ALIAS_ARGUMENT,
    *,
    yes: bool = YES_OPTION,
    output: OutputOptions,
) -> None:
    """Remove a group and its catalogue from your keyring, so that ALIAS is free again. No node is asked.

    Use this for groups of nodes that no longer exist. Nothing is destroyed, but without a group's name you
    cannot find its objects.
    """
    keyring = Keyring.load()
    if alias not in keyring.groups and alias in accepted_grants():
        mark = fingerprint(accepted_grants()[alias].group)
        forget_grant(alias)
    else:
        mark = fingerprint(keyring.name_of(alias)) if alias in keyring.groups else ""
        if mark:
            say(f"If group {alias} still exists, you will not find its objects any more.")
            confirm(f"remove {alias} from your keyring", yes=yes)
        keyring.remove(alias)
        _remove_catalogue(keyring, alias)
    output.print_row(AliasRow(alias, mark), f"{alias} was removed from your keyring")

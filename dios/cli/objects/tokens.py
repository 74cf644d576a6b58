"""``dios token``: sealed tokens, which give a right to files to other people and clusters (ADR 0101)."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated, BinaryIO, Final, TypedDict

import msgspec
import typer
from blake3 import blake3

from dios import limits
from dios.cli.common.application import CommandApplication
from dios.cli.common.context import CommandContext, opened
from dios.cli.common.output import (
    JsonOption,
    NodeOption,
    facts,
    reporting,
    say,
    size_text,
    table,
    time_text,
    write_json,
)
from dios.cli.common.principals import principal_of, principal_text
from dios.cli.nodes.setting_options import seconds_of
from dios.client.imported_tokens import (
    STANDARD,
    forget_token,
    imported_tokens,
    keep_token,
    read_token_file,
    token_of,
    write_token_file,
)
from dios.client.written_files import naming
from dios.errors import DamagedError, InvalidError
from dios.ids import Name
from dios.lib.files.catalogue_places import KeyringCatalogue
from dios.lib.files.group_list import destroy
from dios.lib.tokens import (
    Caveat,
    FileRow,
    OnlyHolder,
    OnlyRights,
    OnlyUntil,
    SealedToken,
    attenuate,
    cluster_of,
    import_token,
    issue_token,
    only_path,
)
from dios.wire.sealed_tokens import OnlyPath, cluster_text, rights_text, token_mark
from dios.wire.types import Permission

app: Final = CommandApplication(
    no_args_is_help=True,
    help="Sealed tokens: a right to files that its holder can narrow and pass on, also to another cluster.",
)

_RECORD_ALIAS: Final = "token/"
"""The beginning of the aliases under which the keyring has the names of records."""

PathOption = Annotated[
    list[str],
    typer.Option("--path", metavar="FILE", help="Only this file of the group, or what is in this directory."),
]
OutOption = Annotated[
    str,
    typer.Option("--out", "-o", metavar="FILE", help="A new file for the token, mode 0600; - prints it."),
]
TokenArgument = Annotated[
    str,
    typer.Argument(metavar="TOKEN", help="A file with the token, - for standard input, or its name here."),
]


class IssuedTokenRow(TypedDict):
    """A token that you issued: its mark, the group, the rights, and the end in nanoseconds since 1970."""

    token: str
    alias: str
    rights: str
    expires: int


class TokenRow(TypedDict):
    """The content of a token without its secrets; paths are those of its caveats, holders the clusters."""

    token: str
    alias: str
    issuer: str
    cluster: str
    rights: str
    expires: int
    paths: list[str]
    holders: list[str]


class ListedTokensRow(TypedDict):
    """The tokens that you issued, and those that you imported, by the names that you gave them."""

    issued: list[IssuedTokenRow]
    imported: dict[str, TokenRow]


class TokenMarkRow(TypedDict):
    """The mark of a token that was revoked, or the name of one that was forgotten."""

    token: str


class TokenFileRow(TypedDict):
    """A file that a token is for; digest is the BLAKE3 of its bytes, empty if it is not known."""

    path: str
    size: int
    put: int
    digest: str


class FetchedFileRow(TypedDict):
    """A file that was read with a token; unchanged if the local file had these bytes already."""

    file: str
    size: int
    unchanged: bool


class _Record(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The content of the record of a grant, for its issuer: the node itself reads the record's name alone."""

    alias: Annotated[str, msgspec.Meta(max_length=limits.TEXT_BYTES_MAX)]
    rights: Annotated[int, msgspec.Meta(ge=0, le=3)]
    expires_ns: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


_encode_record: Final = msgspec.msgpack.Encoder().encode
_decode_record: Final = msgspec.msgpack.Decoder(_Record).decode


# -- the issuer -------------------------------------------------------------------------------------
@app.command(
    epilog="\b\nExamples:\n  dios token issue papers --for 7d -o papers.token\n"
    "  dios token issue papers --path drafts --for 1h -o - | ssh n7 dios token import - --as drafts"
)
def issue(
    alias: Annotated[str, typer.Argument(metavar="ALIAS", help="The group.")],
    *,
    out: OutOption,
    span: Annotated[
        str, typer.Option("--for", metavar="SPAN", help="Until then: 90s, 5min, 1h, 2d; at most 365d.")
    ] = "7d",
    path: PathOption = [],  # noqa: B006 - typer copies it
    write: Annotated[
        bool, typer.Option("--write", help="Let holders store files too, in your name and in your quota.")
    ] = False,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Issue a token with which its holder can read the files of a group, and write it to a file.

    Everybody who has the token can read with it, on your cluster and on clusters that its nodes trust, until
    its time is over or you revoke it: send it like a password. `dios token attenuate` narrows it.
    """
    with reporting("dios token issue", as_json=as_json), opened(node, [alias]) as place:
        group = place.group(alias)
        listed = KeyringCatalogue(place.node, place.keyring, alias, group).create()
        expires_ns = time.time_ns() + seconds_of(span, "--for") * 10**9
        token, record = issue_token(
            place.node,
            group,
            listed,
            cluster=cluster_of(node),
            issuer=f"uid:{os.getuid()}",
            expires_ns=expires_ns,
            alias=alias,
            write=write,
        )
        try:
            record.write_bytes(_encode_record(_Record(alias, token.grant.rights, expires_ns)))
            mark = token_mark(token.grant)
            place.keyring.add(_key_of(alias, mark), Name(record.name or b""), section="objects")
            write_token_file(out, attenuate(token, *map(only_path, path)))
        except BaseException:
            record.destroy()
            raise
        if as_json and out != STANDARD:
            write_json(_issued_row(mark, _Record(alias, token.grant.rights, expires_ns)))
        elif not as_json:
            say(f"token {mark} for {alias}, until {time_text(expires_ns)}; it is secret")
            say(f"to end it: dios token revoke {mark}")


@app.command("revoke", epilog="\b\nExamples:\n  dios token revoke 3f2a90c1d4e5")
def revoke(
    mark: Annotated[str, typer.Argument(metavar="MARK", help="The mark that `dios token ls` shows.")],
    *,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Revoke a token that you issued, and every token that was made of it.

    It counts at the next use, and ends reading that is under way. Bytes that were read cannot be taken back.
    """
    with reporting("dios token revoke", as_json=as_json), opened(node) as place:
        issued = [row for row in _issued(place) if row[1] == mark]
        if not issued:
            raise InvalidError(f"you have issued no token {mark!r}. `dios token ls` lists yours.")
        key, _, _ = issued[0]
        destroy(place.node, [place.keyring.objects[key]])
        place.keyring.remove(key, section="objects")
        if as_json:
            write_json(TokenMarkRow(token=mark))
        else:
            say(f"token {mark} is revoked")


@app.command("ls", epilog="\b\nExamples:\n  dios token ls\n  dios token ls --json")
def list_tokens(*, node: NodeOption = None, as_json: JsonOption = False) -> None:
    """List the tokens that you issued and those that you imported."""
    with reporting("dios token ls", as_json=as_json), opened(node) as place:
        issued, imported = _issued(place), imported_tokens()
        if as_json:
            write_json(
                ListedTokensRow(
                    issued=[_issued_row(mark, record) for _, mark, record in issued],
                    imported={alias: _row_of(token) for alias, token in imported.items()},
                )
            )
            return
        rows = [
            (
                "issued",
                mark,
                record.alias,
                rights_text(Permission(record.rights)),
                time_text(record.expires_ns),
            )
            for _, mark, record in issued
        ]
        for alias, token in imported.items():
            row = _row_of(token)
            rows.append(("imported", row["token"], alias, row["rights"], time_text(row["expires"])))
        if rows:
            table(("KIND", "TOKEN", "NAME", "RIGHTS", "UNTIL"), rows)
        else:
            say("you have no tokens; next: dios token issue ALIAS -o FILE, or import one with --as NAME")


def _key_of(alias: str, mark: str) -> str:
    return f"{_RECORD_ALIAS}{alias}/{mark}"


def _issued_row(mark: str, record: _Record) -> IssuedTokenRow:
    return {
        "token": mark,
        "alias": record.alias,
        "rights": rights_text(Permission(record.rights)),
        "expires": record.expires_ns,
    }


def _issued(place: CommandContext) -> list[tuple[str, str, _Record]]:
    """Return the alias in the keyring, the mark and the content of the records of tokens that are not over.

    Entries of others are removed from the keyring.
    """
    issued = []
    for key, name in list(place.keyring.objects.items()):
        if not key.startswith(_RECORD_ALIAS):
            continue
        records = place.node.lookup(name, limit=1)
        if records:
            record = _record_of(records[0].read_bytes())
            if record.expires_ns > time.time_ns():
                issued.append((key, key.rpartition("/")[2], record))
                continue
            records[0].destroy()
        if records or not records.incomplete:
            place.keyring.remove(key, section="objects")
    return issued


def _record_of(data: bytes) -> _Record:
    try:
        return _decode_record(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedError(f"the record of a token cannot be read: {error}") from None


# -- everybody, offline -----------------------------------------------------------------------------
@app.command(
    "attenuate",
    epilog="\b\nExamples:\n  dios token attenuate papers.token --path drafts -o drafts.token\n"
    "  dios token attenuate papers.token --for 1h --cluster their-authority.pem --user 1234 -o - | …\n"
    "  dios token attenuate - --cluster home -o mine.token < papers.token",
)
def attenuate_token(
    token: TokenArgument,
    *,
    out: OutOption,
    path: PathOption = [],  # noqa: B006 - typer copies it
    span: Annotated[str, typer.Option("--for", metavar="SPAN", help="Only until then, from now.")] = "",
    cluster: Annotated[
        str,
        typer.Option(
            "--cluster",
            metavar="FILE",
            help="Only for the cluster with this authority's certificate; home is the one that issued it.",
        ),
    ] = "",
    read_only: Annotated[bool, typer.Option("--read-only", help="Only for reading.")] = False,
    user: Annotated[
        str, typer.Option("--user", metavar="WHO", help="Only for this user there: uid:N, or N.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Make a narrower token of a token, without asking anybody: no node and no network is needed.

    The former token stays valid. Nobody can undo this to the new one, which is refused if anything in it is
    changed.
    """
    with reporting("dios token attenuate", as_json=as_json):
        former = token_of(token)
        caveats: list[Caveat] = [only_path(allowed) for allowed in path]
        if read_only:
            caveats.append(OnlyRights(int(Permission.READ)))
        if span:
            caveats.append(OnlyUntil(time.time_ns() + seconds_of(span, "--for") * 10**9))
        if user and not cluster:
            raise InvalidError("a user is of a cluster: say which with --cluster FILE, or --cluster home")
        if cluster:
            who = f"uid:{user}" if user.isdigit() else principal_of(user) if user else ""
            if user and not who:
                raise InvalidError(
                    f"{user!r} is no user. Give the number that the user has there, as uid:1234."
                )
            caveats.append(OnlyHolder(_cluster_named(cluster), who))
        if not caveats:
            raise InvalidError(
                "say how to narrow the token: --path FILE, --for SPAN, --cluster FILE, --user WHO"
            )
        attenuated = attenuate(former, *caveats)
        write_token_file(out, attenuated)
        if as_json and out != STANDARD:
            write_json(_row_of(attenuated))


def _cluster_named(text: str) -> bytes:
    """Return the digest of a cluster by the certificate of its authority; empty for ``home``."""
    if text == "home":
        return b""
    from dios.transport.identity.trusted_clusters import cluster_of_authority  # noqa: PLC0415 - loads TLS

    return cluster_of_authority(Path(text).read_bytes())


@app.command(
    "show", epilog="\b\nExamples:\n  dios token show papers.token\n  dios token show - --json < papers.token"
)
def show(token: TokenArgument, *, as_json: JsonOption = False) -> None:
    """Show what a token says, without its secrets and without asking anybody if it is still valid."""
    with reporting("dios token show", as_json=as_json):
        row = _row_of(token_of(token))
        if as_json:
            write_json(row)
            return
        facts(
            [
                ("token", row["token"]),
                ("group", f"{row['alias']} of {row['issuer']}, {row['cluster']}"),
                ("rights", row["rights"]),
                ("until", time_text(row["expires"])),
                ("only files", " and ".join(row["paths"]) or "all of the group"),
                ("only for", " and ".join(row["holders"]) or "whoever has it"),
            ]
        )


def _row_of(token: SealedToken) -> TokenRow:
    expires_ns = [token.grant.expires_ns]
    rights = Permission(token.grant.rights)
    paths, holders = [], []
    for caveat in token.caveats:
        if isinstance(caveat, OnlyUntil):
            expires_ns.append(caveat.expires_ns)
        elif isinstance(caveat, OnlyRights):
            rights &= Permission(caveat.rights)
        elif isinstance(caveat, OnlyPath):
            paths.append(caveat.path)
        elif isinstance(caveat, OnlyHolder):
            holders.append(f"{caveat.user or 'users'} of {cluster_text(caveat.cluster)}")
    return {
        "token": token_mark(token.grant),
        "alias": token.grant.alias,
        "issuer": token.grant.issuer,
        "cluster": cluster_text(token.grant.cluster),
        "rights": rights_text(rights),
        "expires": min(expires_ns),
        "paths": paths,
        "holders": holders,
    }


# -- the holder -------------------------------------------------------------------------------------
@app.command(
    "import",
    epilog="\b\nExamples:\n  dios token import papers.token --as theirs\n"
    "  ssh home cat papers.token | dios token import - --as theirs",
)
def import_(
    token: Annotated[
        str, typer.Argument(metavar="TOKEN", help="A file with the token, or - for standard input.")
    ],
    *,
    alias: Annotated[str, typer.Option("--as", metavar="NAME", help="Your name for it.")],
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Keep a token under a name, after the cluster that issued it has accepted it from you.

    The border of your node asks the issuing cluster, which must be yours or one that your node trusts.
    """
    with reporting("dios token import", as_json=as_json):
        given = read_token_file(token)
        with import_token(given, node) as files:
            terms = files.terms()
        keep_token(alias, given)
        if as_json:
            write_json(_row_of(given))
        else:
            say(
                f"{alias}: {rights_text(terms.rights)} files of {given.grant.alias} of "
                f"{principal_text(given.grant.issuer)}, {cluster_text(given.grant.cluster)}, until "
                f"{time_text(terms.expires_ns)}"
            )
            say(f"next: dios token files {alias}")


@app.command("forget", epilog="\b\nExamples:\n  dios token forget theirs")
def forget(
    alias: Annotated[str, typer.Argument(metavar="NAME", help="Your name for an imported token.")],
    *,
    as_json: JsonOption = False,
) -> None:
    """Forget an imported token. It stays valid for others who have it."""
    with reporting("dios token forget", as_json=as_json):
        if not forget_token(alias):
            raise InvalidError(f"you have imported no token as {alias!r}. `dios token ls` lists yours.")
        if as_json:
            write_json(TokenMarkRow(token=alias))


@app.command(
    "files", epilog="\b\nExamples:\n  dios token files theirs\n  dios token files papers.token --json"
)
def list_files(token: TokenArgument, *, node: NodeOption = None, as_json: JsonOption = False) -> None:
    """List the files that a token is for, as they are now in the cluster that issued it."""
    with reporting("dios token files", as_json=as_json), import_token(token_of(token), node) as files:
        rows = list(files.files())
        if as_json:
            write_json([_file_row(row) for row in rows])
        elif rows:
            table(
                ("FILE", "SIZE", "PUT"),
                [(row.path, size_text(row.size), time_text(row.put_ns)) for row in rows],
                right=("SIZE",),
            )
        else:
            say("there is no file that the token is for")


def _file_row(row: FileRow) -> TokenFileRow:
    return {"path": row.path, "size": row.size, "put": row.put_ns, "digest": row.digest.hex()}


@app.command(
    "get",
    epilog="\b\nExamples:\n  dios token get theirs drafts/one.txt\n  dios token get theirs a.csv -o b.csv",
)
def get(
    token: TokenArgument,
    path: Annotated[str, typer.Argument(metavar="FILE", help="The path of the file in the group.")],
    *,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Default: the file's own name, here.")
    ] = None,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read a file with a token, compare its bytes with their digest, and write it here.

    A local file that has these bytes already is left, and its bytes are not sent. Other local files of this
    name are replaced when all bytes are here.
    """
    with reporting("dios token get", as_json=as_json), import_token(token_of(token), node) as files:
        target = Path(path.rpartition("/")[2]) if out is None else out
        known = _digest_of(target) if target.is_file() else b""
        part = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            head: FileRow | None = None
            written = 0
            with naming(target), part.open("xb") as file:
                for piece in files.parts(path, known=known):
                    if isinstance(piece, FileRow):
                        head = piece
                    else:
                        written += _append(file, piece)
            if head is None:
                raise DamagedError("the border gave no file")
            unchanged = bool(head.size and not written)
            if not unchanged:
                part.replace(target)
        finally:
            part.unlink(missing_ok=True)
        if as_json:
            write_json(FetchedFileRow(file=str(target), size=head.size, unchanged=unchanged))
        else:
            say(f"{target}: {size_text(head.size)}{', unchanged' if unchanged else ''}")


@app.command(
    "put",
    epilog="\b\nExamples:\n  dios token put theirs result.csv results/one.csv\n"
    "  dios token put theirs result.csv results/one.csv --replace",
)
def put(
    token: TokenArgument,
    local: Annotated[Path, typer.Argument(metavar="LOCAL", help="The file here; at most 64 MiB.")],
    path: Annotated[str, typer.Argument(metavar="FILE", help="The path of the new file in the group.")],
    *,
    replace: Annotated[bool, typer.Option("--replace", help="Take the place of a file there.")] = False,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Store a file with a token that has the right to write.

    It belongs to the issuer of the token, and counts with that user. It is visible when all of it has arrived
    with its digest.
    """
    with reporting("dios token put", as_json=as_json), import_token(token_of(token), node) as files:
        if local.stat().st_size > limits.BORDER_WRITE_BYTES_MAX:
            raise InvalidError(f"{local} has more than {size_text(limits.BORDER_WRITE_BYTES_MAX)}")
        row = files.write_bytes(path, local.read_bytes(), replace=replace)
        if as_json:
            write_json(_file_row(row))
        else:
            say(f"{row.path}: {size_text(row.size)} stored")


def _append(file: BinaryIO, data: bytes) -> int:
    return file.write(data)


def _digest_of(path: Path) -> bytes:
    """Return the digest of a local file."""
    try:
        return blake3(max_threads=1).update_mmap(path).digest()
    except OSError as error:
        raise InvalidError(f"cannot read {path}: {error.strerror}") from None

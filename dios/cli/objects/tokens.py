"""``dios token``: sealed tokens, which give a right to files to other people and clusters (ADR 0101)."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated, Final

import msgspec
from blake3 import blake3

from dios import limits
from dios.cli.common.application import CommandApplication
from dios.cli.common.context import CommandContext, opened
from dios.cli.common.options import argument, option
from dios.cli.common.output import Cells, say, size_text, table_of, time_text, write_json
from dios.cli.common.principals import principal_of, principal_text
from dios.cli.common.results import CommonOptions, OutputOptions
from dios.cli.common.rows import Row
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

PATH_OPTION: Final[list[str]] = option(
    "--path FILE", "Only this file of the group, or what is in this directory."
)
OUT_OPTION: Final[str] = option(
    "-o --out FILE", "A new file for the token, mode 0600; - prints it.", required=True
)
TOKEN_ARGUMENT: Final[str] = argument(
    "TOKEN", "A file with the token, - for standard input, or its name here."
)


class IssuedTokenRow(Row):
    """A token that you issued: its mark, the group, the rights, and the end in nanoseconds since 1970."""

    token: str
    alias: str
    rights: str
    expires: int


class TokenRow(Row):
    """The content of a token without its secrets; paths are those of its caveats, holders the clusters."""

    token: str
    alias: str
    issuer: str
    cluster: str
    rights: str
    expires: int
    paths: list[str]
    holders: list[str]


class ListedTokensRow(Row):
    """The tokens that you issued, and those that you imported, by the names that you gave them."""

    issued: list[IssuedTokenRow]
    imported: dict[str, TokenRow]


class TokenMarkRow(Row):
    """The mark of a token that was revoked, or the name of one that was forgotten."""

    token: str


class TokenFileRow(Row):
    """A file that a token is for; digest is the BLAKE3 of its bytes, empty if it is not known."""

    path: str
    size: int
    put: int
    digest: str


class FetchedFileRow(Row):
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
    examples="dios token issue papers --for 7d -o papers.token\n"
    "dios token issue papers --path drafts --for 1h -o - | ssh n7 dios token import - --as drafts",
    json=IssuedTokenRow,
)
def issue(
    alias: str = argument("ALIAS", "The group."),
    *,
    out: str = OUT_OPTION,
    span: str = option("--for SPAN", "Until then: 90s, 5min, 1h, 2d; at most 365d.", default="7d"),
    path: list[str] = PATH_OPTION,
    write: bool = option("--write", "Let holders store files too, in your name and in your quota."),
    common: CommonOptions,
) -> None:
    """Issue a token with which its holder can read the files of a group, and write it to a file.

    Everybody who has the token can read with it, on your cluster and on clusters that its nodes trust, until
    its time is over or you revoke it: send it like a password. `dios token attenuate` narrows it.
    """
    with opened(common.node, [alias]) as place:
        group = place.group(alias)
        listed = KeyringCatalogue(place.node, place.keyring, alias, group).create()
        expires_ns = time.time_ns() + seconds_of(span, "--for") * 10**9
        token, record = issue_token(
            place.node,
            group,
            listed,
            cluster=cluster_of(common.node),
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
        if out != STANDARD or not common.as_json:
            common.print_row(
                _issued_row(mark, _Record(alias, token.grant.rights, expires_ns)),
                f"token {mark} for {alias}, until {time_text(expires_ns)}; it is secret",
                f"to end it: dios token revoke {mark}",
            )


@app.command("revoke", examples="dios token revoke 3f2a90c1d4e5", json=TokenMarkRow)
def revoke(
    mark: str = argument("MARK", "The mark that `dios token ls` shows."), *, common: CommonOptions
) -> None:
    """Revoke a token that you issued, and every token that was made of it.

    It counts at the next use, and ends reading that is under way. Bytes that were read cannot be taken back.
    """
    with opened(common.node) as place:
        issued = [row for row in _issued(place) if row[1] == mark]
        if not issued:
            raise InvalidError(f"you have issued no token {mark!r}. `dios token ls` lists yours.")
        key, _, _ = issued[0]
        destroy(place.node, [place.keyring.objects[key]])
        place.keyring.remove(key, section="objects")
        common.print_row(TokenMarkRow(mark), f"token {mark} is revoked")


@app.command("ls", examples="dios token ls\ndios token ls --json", json=ListedTokensRow)
def list_tokens(common: CommonOptions) -> None:
    """List the tokens that you issued and those that you imported."""
    with opened(common.node) as place:
        issued = [_issued_row(mark, record) for _, mark, record in _issued(place)]
        imported = {alias: _row_of(token) for alias, token in imported_tokens().items()}
        if common.as_json:
            write_json(ListedTokensRow(issued, imported))
            return
        lines = [_cells("issued", row.alias, row) for row in issued]
        lines += [_cells("imported", alias, row) for alias, row in imported.items()]
        if not table_of(lines):
            say("you have no tokens; next: dios token issue ALIAS -o FILE, or import one with --as NAME")


def _cells(kind: str, name: str, row: IssuedTokenRow | TokenRow) -> Cells:
    until = time_text(row.expires)
    return {"KIND": kind, "TOKEN": row.token, "NAME": name, "RIGHTS": row.rights, "UNTIL": until}


def _key_of(alias: str, mark: str) -> str:
    return f"{_RECORD_ALIAS}{alias}/{mark}"


def _issued_row(mark: str, record: _Record) -> IssuedTokenRow:
    return IssuedTokenRow(mark, record.alias, rights_text(Permission(record.rights)), record.expires_ns)


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
    examples="dios token attenuate papers.token --path drafts -o drafts.token\n"
    "dios token attenuate papers.token --for 1h --cluster their-authority.pem --user 1234 -o - | …\n"
    "dios token attenuate - --cluster home -o mine.token < papers.token",
    json=TokenRow,
)
def attenuate_token(
    token: str = TOKEN_ARGUMENT,
    *,
    out: str = OUT_OPTION,
    path: list[str] = PATH_OPTION,
    span: str = option("--for SPAN", "Only until then, from now."),
    cluster: str = option(
        "--cluster FILE",
        "Only for the cluster with this root's certificate; home is the one that issued it.",
    ),
    read_only: bool = option("--read-only", "Only for reading."),
    user: str = option("--user WHO", "Only for this user there: uid:N, or N."),
    output: OutputOptions,
) -> None:
    """Make a narrower token of a token, without asking anybody: no node and no network is needed.

    The former token stays valid. Nobody can undo this to the new one, which is refused if anything in it is
    changed.
    """
    former = token_of(token)
    caveats: list[Caveat] = [only_path(allowed) for allowed in path]
    if read_only:
        caveats.append(OnlyRights(int(Permission.READ)))
    if span:
        caveats.append(OnlyUntil(time.time_ns() + seconds_of(span, "--for") * 10**9))
    if user and not cluster:
        raise InvalidError("a user is of a cluster: say which with --cluster FILE, or --cluster home")
    if cluster:
        who = principal_of(f"uid:{user}") or (principal_of(user) if user else "")
        if user and not who:
            raise InvalidError(f"{user!r} is no user. Give the number that the user has there, as uid:1234.")
        caveats.append(OnlyHolder(_cluster_named(cluster), who))
    if not caveats:
        raise InvalidError("say how to narrow the token: --path FILE, --for SPAN, --cluster FILE, --user WHO")
    attenuated = attenuate(former, *caveats)
    write_token_file(out, attenuated)
    if output.as_json and out != STANDARD:
        write_json(_row_of(attenuated))


def _cluster_named(text: str) -> bytes:
    """Return the digest of a cluster by the certificate of its root; empty for ``home``."""
    if text == "home":
        return b""
    from dios.transport.identity.trusted_clusters import cluster_of_authority  # noqa: PLC0415 - loads TLS

    return cluster_of_authority(Path(text).read_bytes())


@app.command(
    "show", examples="dios token show papers.token\ndios token show - --json < papers.token", json=TokenRow
)
def show(token: str = TOKEN_ARGUMENT, *, output: OutputOptions) -> None:
    """Show what a token says, without its secrets and without asking anybody if it is still valid."""
    row = _row_of(token_of(token))
    output.print_row(
        row,
        facts={
            "token": row.token,
            "group": f"{row.alias} of {row.issuer}, {row.cluster}",
            "rights": row.rights,
            "until": time_text(row.expires),
            "only files": " and ".join(row.paths) or "all of the group",
            "only for": " and ".join(row.holders) or "whoever has it",
        },
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
    return TokenRow.of(
        token.grant,
        token=token_mark(token.grant),
        cluster=cluster_text(token.grant.cluster),
        rights=rights_text(rights),
        expires=min(expires_ns),
        paths=paths,
        holders=holders,
    )


# -- the holder -------------------------------------------------------------------------------------
@app.command(
    "import",
    examples="dios token import papers.token --as theirs\n"
    "ssh home cat papers.token | dios token import - --as theirs",
    json=TokenRow,
)
def import_(
    token: str = argument("TOKEN", "A file with the token, or - for standard input."),
    *,
    alias: str = option("--as NAME", "Your name for it.", required=True),
    common: CommonOptions,
) -> None:
    """Keep a token under a name, after the cluster that issued it has accepted it from you.

    The border of your node asks the issuing cluster, which must be yours or one that your node trusts.
    """
    given = read_token_file(token)
    with import_token(given, common.node) as files:
        terms = files.terms()
    keep_token(alias, given)
    common.print_row(
        _row_of(given),
        f"{alias}: {rights_text(terms.rights)} files of {given.grant.alias} of "
        f"{principal_text(given.grant.issuer)}, {cluster_text(given.grant.cluster)}, until "
        f"{time_text(terms.expires_ns)}",
        f"next: dios token files {alias}",
    )


@app.command("forget", examples="dios token forget theirs", json=TokenMarkRow)
def forget(
    alias: str = argument("NAME", "Your name for an imported token."), *, output: OutputOptions
) -> None:
    """Forget an imported token. It stays valid for others who have it."""
    if not forget_token(alias):
        raise InvalidError(f"you have imported no token as {alias!r}. `dios token ls` lists yours.")
    output.print_row(TokenMarkRow(alias))


@app.command(
    "files", examples="dios token files theirs\ndios token files papers.token --json", json=[TokenFileRow]
)
def list_files(token: str = TOKEN_ARGUMENT, *, common: CommonOptions) -> None:
    """List the files that a token is for, as they are now in the cluster that issued it."""
    with import_token(token_of(token), common.node) as files:
        common.print_rows(
            map(_file_row, files.files()),
            lambda row: {"FILE": row.path, "SIZE": size_text(row.size), "PUT": time_text(row.put)},
            empty="there is no file that the token is for",
        )


def _file_row(row: FileRow) -> TokenFileRow:
    return TokenFileRow(row.path, row.size, row.put_ns, row.digest.hex())


@app.command(
    "get",
    examples="dios token get theirs drafts/one.txt\ndios token get theirs a.csv -o b.csv",
    json=FetchedFileRow,
)
def get(
    token: str = TOKEN_ARGUMENT,
    path: str = argument("FILE", "The path of the file in the group."),
    *,
    out: Path | None = option("-o --out FILE", "Default: the file's own name, here."),
    common: CommonOptions,
) -> None:
    """Read a file with a token, compare its bytes with their digest, and write it here.

    A local file that has these bytes already is left, and its bytes are not sent. Other local files of this
    name are replaced when all bytes are here.
    """
    with import_token(token_of(token), common.node) as files:
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
                        written += file.write(piece)
            if head is None:
                raise DamagedError("the border gave no file")
            unchanged = bool(head.size and not written)
            if not unchanged:
                part.replace(target)
        finally:
            part.unlink(missing_ok=True)
        common.print_row(
            FetchedFileRow(str(target), head.size, unchanged),
            f"{target}: {size_text(head.size)}{', unchanged' if unchanged else ''}",
        )


@app.command(
    "put",
    examples="dios token put theirs result.csv results/one.csv\n"
    "dios token put theirs result.csv results/one.csv --replace",
    json=TokenFileRow,
)
def put(
    token: str = TOKEN_ARGUMENT,
    local: Path = argument("LOCAL", "The file here; at most 64 MiB."),
    path: str = argument("FILE", "The path of the new file in the group."),
    *,
    replace: bool = option("--replace", "Take the place of a file there."),
    common: CommonOptions,
) -> None:
    """Store a file with a token that has the right to write.

    It belongs to the issuer of the token, and counts with that user. It is visible when all of it has arrived
    with its digest.
    """
    with import_token(token_of(token), common.node) as files:
        if local.stat().st_size > limits.BORDER_WRITE_BYTES_MAX:
            raise InvalidError(f"{local} has more than {size_text(limits.BORDER_WRITE_BYTES_MAX)}")
        row = files.write_bytes(path, local.read_bytes(), replace=replace)
        common.print_row(_file_row(row), f"{row.path}: {size_text(row.size)} stored")


def _digest_of(path: Path) -> bytes:
    """Return the digest of a local file."""
    try:
        return blake3(max_threads=1).update_mmap(path).digest()
    except OSError as error:
        raise InvalidError(f"cannot read {path}: {error.strerror}") from None
